"""Makes a dataclass from a stored line and checks each field's type, so that an invalid field is named before it is used.

JSON has no tuple, NaN or infinity: lists become tuples, and the strings "nan", "inf" and "-inf" numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

NOT_FINITE = ("nan", "inf", "-inf")
Take = Callable[[Any], Any]
T = TypeVar("T")


class WrongField(ValueError):
    """A field has an invalid value; the message names the field, its value and what is accepted."""

    def __init__(self, found: object, taken: str, where: str = "") -> None:
        self.found, self.taken, self.where = found, taken, where
        held = "missing" if found is MISSING else repr(found)[:60]
        super().__init__(f"its field {where or '?'} is {held}: {taken} is taken")

    def below(self, name: str) -> WrongField:
        return WrongField(self.found, self.taken, f"{name}.{self.where}" if self.where else name)


def made(cls: type[T], data: Mapping[str, Any]) -> T:
    """The dataclass of these fields; unknown ones are dropped. Raises WrongField."""
    takes, needed = _of_class(cls)  # type: ignore[arg-type]  # a class can be hashed
    for name in needed:
        if name not in data:
            raise WrongField(MISSING, "what opwise wrote", name)
    found = {}
    for name, value in data.items():
        if (take := takes.get(name)) is not None:
            try:
                found[name] = take(value)
            except WrongField as wrong:
                raise wrong.below(name) from None
    return cls(**found)


@cache
def _of_class(cls: Any) -> tuple[Mapping[str, Take], tuple[str, ...]]:
    """Field -> what takes it, and those that must be there."""
    hints = get_type_hints(cls)
    needed = (f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING)
    return {f.name: f.metadata.get("take") or _of_type(hints[f.name]) for f in fields(cls)}, tuple(needed)


def _of_type(kind: Any) -> Take:
    parts = get_args(kind)
    if NoneType in parts:
        return or_none(*(_of_type(part) for part in parts if part is not NoneType))
    if get_origin(kind) is tuple:
        return _list(_of_type(parts[0])) if parts[1:] == (...,) else _list(_of_type(parts[0]), len(parts))
    if get_origin(kind) is Mapping:
        return _object(_of_type(parts[1]))
    if is_dataclass(kind) and isinstance(kind, type):
        inner = _object(lambda value: value)
        return lambda value: made(kind, inner(value))
    return {float: number(), int: _whole, bool: _bool, str: _text}.get(kind, lambda value: value)


def or_none(inner: Take) -> Take:
    return lambda value: None if value is None else inner(value)


def number(finite: bool = True) -> Take:
    """A number of at least 0; infinity and nan only for fields that allow them."""

    def take(value: Any) -> float:
        if type(value) is float or type(value) is int or value in NOT_FINITE:
            try:
                found = float(value)
                if 0 <= found < math.inf or not (finite or found < 0):
                    return value if type(value) is int else found
            except OverflowError:
                pass
        raise WrongField(value, "a number of at least 0" + ("" if finite else ', "inf" or "nan"'))

    return take


def one_of(known: tuple[str, ...]) -> Take:
    def take(value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise WrongField(value, f"one of {', '.join(filter(None, known))}")
        return value

    return take


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**64:
        raise WrongField(value, "a whole number of at least 0, below 2^64,")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise WrongField(value, "true or false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or not (value.isascii() or value.encode(errors="ignore").decode() == value):
        raise WrongField(value, "a text")
    return value


def _list(inner: Take, length: int | None = None) -> Take:
    def take(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            raise WrongField(value, "a list" if length is None else f"a list of {length}")
        return tuple(map(inner, value))

    return take


def _object(inner: Take) -> Take:
    def take(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise WrongField(value, "an object")
        return {_text(name): inner(part) for name, part in value.items()}

    return take
