"""Adapter for numba-cuda-mlir: llvmlite's builder, as far as the intrinsics use it, over MLIR's dialects; compilation without a driver.

An intrinsic there is a function of (builder, target, args, kwargs) that makes MLIR's operations, where numba-cuda's makes LLVM's. The names
below are llvmlite's, so that an intrinsic is written once. Arrays are memrefs: `Place` stands for a pointer to an element.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from numba_cuda_mlir import cuda, extending, tools, types
from numba_cuda_mlir._mlir import ir as _ir
from numba_cuda_mlir._mlir.dialects import arith, llvm, math, memref

# ---- what llvmlite.ir has: types are made in MLIR's context, which there is while a kernel is compiled and not before --------------------


@dataclass(frozen=True)
class Kind:
    """A type of llvmlite's, by the text that MLIR reads; `parts` of a struct."""

    text: str
    parts: tuple[Kind, ...] = ()

    def made(self) -> Any:
        if self.parts:
            return llvm.StructType.get_literal([part.made() for part in self.parts])
        return _ir.Type.parse(self.text)


@dataclass(frozen=True)
class Constant:
    type: Any
    value: Any


@dataclass(frozen=True)
class InlineAsm:
    result: Kind
    text: str
    constraints: str
    side_effect: bool


@dataclass(frozen=True)
class Parts:
    """A struct that inline PTX gave."""

    value: Any
    kinds: tuple[Kind, ...]


@dataclass(frozen=True)
class Place:
    array: Any
    index: Any = None


ir = SimpleNamespace(
    IntType=lambda bits: Kind(f"i{bits}"),
    HalfType=lambda: Kind("f16"),
    FloatType=lambda: Kind("f32"),
    VoidType=lambda: Kind("none"),
    LiteralStructType=lambda kinds: Kind("struct", tuple(kinds)),
    FunctionType=lambda result, kinds: result,
    InlineAsm=lambda kind, text, constraints, side_effect: InlineAsm(kind, text, constraints, side_effect),
    Constant=Constant,
)


def _value(x: Any) -> Any:
    if not isinstance(x, Constant):
        return x
    kind = x.type.made() if isinstance(x.type, Kind) else x.type
    held = x.value - 2**kind.width if isinstance(kind, _ir.IntegerType) and x.value >= 2 ** (kind.width - 1) else x.value
    return arith.constant(kind, held)


class Builder:
    """The methods of llvmlite's IRBuilder that the intrinsics call."""

    def add(self, a: Any, b: Any) -> Any:
        return arith.addi(_value(a), _value(b))

    def and_(self, a: Any, b: Any) -> Any:
        return arith.andi(_value(a), _value(b))

    def or_(self, a: Any, b: Any) -> Any:
        return arith.ori(_value(a), _value(b))

    def shl(self, a: Any, b: Any) -> Any:
        return arith.shli(_value(a), _value(b))

    def lshr(self, a: Any, b: Any) -> Any:
        return arith.shrui(_value(a), _value(b))

    def bitcast(self, x: Any, kind: Kind) -> Any:
        return arith.bitcast(kind.made(), x) if str(x.type) != kind.text else x

    def trunc(self, x: Any, kind: Kind) -> Any:
        return arith.trunci(kind.made(), x)

    def zext(self, x: Any, kind: Kind) -> Any:
        return arith.extui(kind.made(), x)

    def fpext(self, x: Any, kind: Kind) -> Any:
        return arith.extf(kind.made(), x)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return math.fma(_value(a), _value(b), _value(c))

    def gep(self, place: Place, indices: Sequence[Any], inbounds: bool = False) -> Place:
        (at,) = indices
        return Place(place.array, arith.index_cast(_ir.IndexType.get(), _value(at)))

    def load(self, place: Place) -> Any:
        return memref.load(place.array, [place.index])

    def store(self, x: Any, place: Place) -> None:
        memref.store(_value(x), place.array, [place.index])

    def ptrtoint(self, place: Place, kind: Kind) -> Any:
        """Of an array's beginning, as numba-cuda has it: generic. Here an array in shared memory has an address in the shared window."""
        address = arith.index_cast(kind.made(), memref.extract_aligned_pointer_as_index(place.array))
        if "workgroup" not in str(place.array.type):
            return address
        return llvm.inline_asm(kind.made(), [address], "cvta.shared.u64 $0, $1;", "=l,l", has_side_effects=False)

    def extract_value(self, parts: Parts, i: int) -> Any:
        return llvm.extractvalue(parts.kinds[i].made(), parts.value, _ir.DenseI64ArrayAttr.get([i]))

    def call(self, asm: InlineAsm, values: Sequence[Any], attrs: Sequence[str] = ()) -> Any:
        """MLIR's inline assembly has no word for `convergent`."""
        result = None if asm.result.text == "none" else asm.result.made()
        made = llvm.inline_asm(result, [_value(x) for x in values], asm.text, asm.constraints, has_side_effects=asm.side_effect)
        return Parts(made, asm.result.parts) if asm.result.parts else made


def data_of(array: Any) -> Place:
    return Place(array)


# ---- intrinsics --------------------------------------------------------------------------------------------------------------------------

CONTEXT = SimpleNamespace(get_dummy_value=lambda: None)


def intrinsic(definition: Callable[..., Any]) -> Any:
    """numba.cuda.extending.intrinsic, of a definition whose codegen is written against llvmlite."""

    @functools.wraps(definition)
    def played(typing: Any, *kinds: Any) -> Any:
        signature, codegen = definition(typing, *kinds)

        def lower(builder: Any, target: Any, args: Any, kwargs: Any) -> None:
            values = [_argument(builder, variable, kind) for variable, kind in zip(args, signature.args, strict=True)]
            builder.store_var(target, codegen(CONTEXT, Builder(), signature, values))

        return signature, lower

    return extending.intrinsic(played)


def _argument(builder: Any, variable: Any, kind: Any) -> Any:
    """A variable as the signature has it: Numba hands over what it had, and its own conversion widens as if all integers had a sign."""
    x = builder.load_var(variable)
    if isinstance(kind, types.Array):
        return x
    wanted, own = builder.get_mlir_type(kind), builder.get_numba_type(variable.name)
    if x.type == wanted:
        return x
    if isinstance(x.type, _ir.IntegerType) and isinstance(wanted, _ir.IntegerType) and x.type.width < wanted.width:
        return (arith.extsi if getattr(own, "signed", False) else arith.extui)(wanted, x)
    return builder.mlir_convert(x, wanted)


# ---- the compiler ------------------------------------------------------------------------------------------------------------------------


@contextmanager
def _no_driver(cc: tuple[int, int]) -> Iterator[None]:
    """It asks the driver for the GPU at hand, only to link for that one where `cc` is older, even where PTX alone is wanted."""
    before = tools._cached_cc
    tools._cached_cc = cc
    try:
        yield
    finally:
        tools._cached_cc = before


def compiled(function: Callable[..., None], signature: Any, cc: tuple[Any, ...], bounds: tuple[int, int] | None = None) -> str:
    """PTX. By `jit`, since its `compile` takes sm_90a for sm_90."""
    chip = f"sm_{''.join(map(str, cc))}"
    extending.refresh_registries(target=False, include_uninitialized_cuda=False)  # or intrinsics made since its first kernel are unknown
    with _no_driver((cc[0], cc[1])):
        kernel = cuda.jit(function, chip=chip, launch_bounds=bounds)
        return apart(str(kernel.compile(signature.args).metadata["ptx"]))


def apart(ptx: str) -> str:
    """The kernel's PTX with its dynamic shared memory behind its static arrays.

    0.6.0 declares it as one of them, of no bytes, and another array begins in the same place (NVIDIA/numba-cuda-mlir#312).
    """
    ptx, found = re.subn(r"(?m)^\s*\.shared \.align \d+ \.b8 __dynamic_shmem__0;.*\n", "", ptx)
    if not found:
        return ptx
    return ptx.replace(".visible .entry", ".extern .shared .align 16 .b8 __dynamic_shmem__0[];\n\n.visible .entry", 1)
