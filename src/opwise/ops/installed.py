"""Entries that installed packages add to the tables OPS and BACKENDS by entry points. Finding them reads metadata and imports nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

T = TypeVar("T")


class NameClash(ValueError):
    """Two packages offer one name; the message names both."""


def offered(group: str, ours: Mapping[str, str]) -> dict[str, EntryPoint]:
    """Name -> entry point, for a group such as `opwise.ops`. ours: opwise's own names -> the modules that define them.

    Raises NameClash if a name is taken: which of two kernels runs must not depend on the order of sys.path.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted(set(entry_points(group=group)), key=lambda point: (point.name, point.value)):
        if point.name in ours or point.name in found:
            first = _told(found[point.name]) if point.name in found else f"opwise ({ours[point.name]})"
            raise NameClash(f"two packages offer {point.name!r} as {group}: {first} and {_told(point)}: uninstall one, or rename it")
        found[point.name] = point
    return found


def _told(point: EntryPoint) -> str:
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a package"
    return f"{package} ({point.value})"


class Table(Mapping[str, T], Generic[T]):
    """opwise's own entries, then those of installed packages, which are loaded and checked on first access."""

    def __init__(self, ours: Mapping[str, T], points: Mapping[str, EntryPoint], check: Callable[[EntryPoint, object], T]) -> None:
        self._loaded, self._points, self._check = dict(ours), dict(points), check

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            point = self._points[name]
            self._loaded[name] = self._check(point, point.load())
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._loaded, *self._points]))

    def __len__(self) -> int:
        return len({*self._loaded, *self._points})

    def __contains__(self, name: object) -> bool:
        return name in self._loaded or name in self._points
