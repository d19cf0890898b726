"""Every backend's kernels compiled for an architecture, with or without a GPU, with a map from each instruction to its source line.

Line information changes no instruction, so the code is the code that runs; tests/test_inspect.py checks it for each backend's
`compile_only`. A failure costs one kernel or one unit: an architecture without the instructions is a result, not an error."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwise.backends import BACKENDS
from opwise.backends.protocol import BackendUnavailable, variants_of
from opwise.ops.spec import DTYPES

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
DTYPE = re.compile("|".join(sorted(DTYPES, key=len, reverse=True)))  # "bfloat16" before the "float16" in it

# matmul_ptx.cuh leaves these instructions out there: the rest compiles, and facts of it would be of no kernel that works.
HOLLOW = "its tensor-core instructions are of sm_80 and later, and left out by its source before that"


@dataclass(frozen=True)
class Compiled:
    """A kernel under the name that `compile_only` gives it, without its op. `symbol` is its name in `cubin` and `ptx`.

    `spilled_bytes`: as ptxas reports, None if unknown; `dynamic_shared`: bytes requested by a launch, None if each launch decides. `forms`:
    Triton's intermediate forms, "ttir", "ttgir", "llir". Without a cubin, `reason` says why; `kernel` may then be a whole unit."""

    kernel: str
    symbol: str = ""
    cubin: bytes = b""
    ptx: str = ""
    spilled_bytes: int | None = None
    dynamic_shared: int | None = None
    reason: str = ""
    forms: Mapping[str, str] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """The dtype in its name; "" for a unit of several."""
        found = DTYPE.search(self.kernel)
        return found[0] if found else ""


def variants(backend: str, op: str) -> tuple[str, ...]:
    """The op's variants in a backend, "" first, whether or not they can run here; () if the backend lacks the op.

    Raises what an import of the backend's library raises."""
    module = importlib.import_module(BACKENDS[backend])
    if hasattr(module, "variants"):
        return tuple(module.variants(op))
    if not hasattr(module, "__path__") or importlib.util.find_spec(f"{BACKENDS[backend]}.{op}") is None:
        return ()
    return tuple(variants_of(importlib.import_module(f"{BACKENDS[backend]}.{op}")))


def compiled(backend: str, op: str, arch: str, dtype: str | None = None) -> list[Compiled]:
    """Every kernel of the op in that backend for an architecture such as "sm_90", of one dtype or of all.

    Raises BackendUnavailable if its compiler is missing or it has none."""
    if backend not in COMPILERS:
        raise BackendUnavailable(
            f"{backend} brings no kernels of its own to compile", "inspect torch_inline, cupy_raw, numba_cuda or triton_jit"
        )
    if importlib.util.find_spec(f"{BACKENDS[backend]}.{op}") is None:
        return []
    return [found for found in COMPILERS[backend](op, arch, dtype) if not dtype or found.dtype in ("", dtype)]


def _nvcc(op: str, arch: str, dtype: str | None) -> Iterator[Compiled]:
    from opwise.backends.cuda_src.sources import FOLDER, units
    from opwise.backends.torch_inline.toolchain import toolchain

    tools = toolchain()
    for unit, text in units(arch).items():
        if not _holds(unit, op, dtype):
            continue
        with tempfile.TemporaryDirectory(prefix="opwise-inspect-") as folder:
            source, cubin = Path(folder, f"unit_{unit}.cu"), Path(folder, "out.cubin")
            source.write_text(text)
            flags = [*tools.nvcc_flags(arch), f"-I{FOLDER}", "-lineinfo", "-Xptxas", "-v", "-keep", f"-keep-dir={folder}"]
            command = [str(tools.nvcc), "-cubin", *flags, str(source), "-o", str(cubin)]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode:
                yield Compiled(unit, reason=f"nvcc: {_first_error(done.stdout)}")
            else:
                yield from _of_unit(cubin.read_bytes(), source.with_suffix(".ptx").read_text(), done.stdout, arch)


def _nvrtc(op: str, arch: str, dtype: str | None) -> Iterator[Compiled]:
    from cupy.cuda import nvrtc

    from opwise.backends.cuda_src.sources import FOLDER, units
    from opwise.backends.cupy_raw.module import options

    for unit, text in units(arch).items():
        if not _holds(unit, op, dtype):
            continue
        program = nvrtc.createProgram(text, f"unit_{unit}.cu", (), ())
        try:
            nvrtc.compileProgram(program, (*options(arch), f"-I{FOLDER}", "-lineinfo"))
            ptx, log = nvrtc.getPTX(program), nvrtc.getProgramLog(program)
            yield from _of_unit(nvrtc.getCUBIN(program), ptx.decode() if isinstance(ptx, bytes) else ptx, log, arch)
        except nvrtc.NVRTCError as error:
            yield Compiled(unit, reason=f"NVRTC: {_first_error(nvrtc.getProgramLog(program) or str(error))}")
        finally:
            nvrtc.destroyProgram(program)


def _without_tensor_cores(arch: str) -> Callable[[str], bool]:
    """Which matmul kernels does this architecture compile and cannot run?"""
    from opwise.backends.cuda_src.matmul import configs
    from opwise.backends.cuda_src.matmul.configurations import TENSOR_CORES_FROM, cluster_unit

    capability = divmod(int(arch.removeprefix("sm_")), 10)
    by_mma = [
        (c, kind) for c in configs() for kind in c.kinds if "simt" not in c.name and "gemv" not in c.name and cluster_unit(kind) != "fma"
    ]
    hollow = {config.kernel(kind) for config, kind in by_mma} if capability < TENSOR_CORES_FROM else set()
    return lambda kernel: kernel in hollow


def _of_unit(cubin: bytes, ptx: str, log: str, arch: str) -> Iterator[Compiled]:
    from opwise.backends.cuda_src.sources import resource_facts

    hollow = _without_tensor_cores(arch)
    for kernel, line in resource_facts(log, cubin).items():
        if hollow(kernel):
            yield Compiled(kernel, reason=HOLLOW)
        else:
            yield Compiled(kernel, kernel, cubin, ptx, _spilled(line))


def _holds(unit: str, op: str, dtype: str | None) -> bool:
    """Does the unit hold kernels of the op and, of matmul, whose units are one a dtype, of the dtype?"""
    owner, _, rest = unit.partition("_")
    return owner == op and (dtype is None or rest not in DTYPES or rest == dtype)


def _numba(op: str, arch: str, dtype: str | None) -> Iterator[Compiled]:
    from opwise.backends.numba_cuda.common.compiler import compiled, types

    module = importlib.import_module(f"{BACKENDS['numba_cuda']}.{op}")
    for name, kernel in module.kernels().items():
        if dtype is not None and DTYPE.findall(name)[:1] != [dtype]:
            continue
        if kernel.runs_on(arch):
            yield _numba_kernel(name, functools.partial(kernel.ptx, arch), kernel.target(arch), kernel.dynamic_shared)
        else:
            yield Compiled(name, reason=f"for {kernel.only} alone, whose own instructions it is made of")
    number = arch.removeprefix("sm_")
    for part, (kernel, signature) in module.PLAIN.items():  # launched the plain way: Numba compiles it at the call, for arrays
        for element in ("float32", "float16"):
            if dtype in (None, element):
                taken = signature(getattr(types, element))

                def ptx(function: Any = kernel.py_func, taken: Any = taken) -> str:
                    return compiled(function, taken.args, (int(number[:-1]), int(number[-1])))

                yield _numba_kernel(f"{element} plain {part}".rstrip(), ptx, arch, 0)


def _numba_kernel(name: str, ptx_of: Callable[[], str], target: str, shared: int) -> Compiled:
    from opwise.backends.numba_cuda.common.driver import link

    reason = ""
    for lineinfo in (True, False):  # NVVM refuses the line information of some float16 kernels, and takes them without
        try:
            with _numba_line_info(lineinfo):
                ptx = ptx_of()
            entry = re.search(r"\.entry\s+([\w$]+)", ptx)
            if entry is None:
                raise RuntimeError("PTX without an entry")
            cubin, remarks = link(ptx, target, ptxas_options=["-v"], **({"lineinfo": True} if lineinfo else {}))
        except Exception as error:  # what Numba, NVVM or the linker cannot make; each has errors of its own kinds
            reason = f"Numba: {_first_error(str(error))}"
            if "Undefined reference" in reason:
                reason = "Numba takes an operator in it from C++, which it compiles where there is a driver alone"
            continue
        spilled = re.search(r"(\d+) bytes spill stores", remarks)
        return Compiled(name, entry[1], cubin, ptx, int(spilled[1]) if spilled else None, shared)
    return Compiled(name, reason=reason)


@contextmanager
def _numba_line_info(wanted: bool) -> Iterator[None]:
    """Numba adds line information to what is compiled within: Kernel.ptx, which decides all else, is left. Its successor adds none."""
    from opwise.backends.numba_cuda.common.compiler import cuda

    plain = cuda.compile
    if wanted:
        cuda.compile = functools.partial(plain, lineinfo=True)
    try:
        with warnings.catch_warnings():  # of Numba about itself
            warnings.simplefilter("ignore")
            yield
    finally:
        cuda.compile = plain


def _triton(op: str, arch: str, dtype: str | None) -> Iterator[Compiled]:
    from opwise.backends.cubin import instructions
    from opwise.backends.triton_jit.common.specimen import compiled as compiled_specimen

    module = importlib.import_module(f"{BACKENDS['triton_jit']}.{op}")
    # Tensor descriptors are chosen from sm_90 on: all before it run what sm_80 runs.
    specimens = module.specimens(arch if int(arch.removeprefix("sm_")) >= 90 else "sm_80")
    for name, specimen in specimens.items():
        if dtype is not None and DTYPE.findall(name)[:1] != [dtype]:
            continue
        try:
            kernel = compiled_specimen(specimen, arch)
        except Exception as error:  # Triton wraps what its passes and ptxas refuse in errors of many kinds
            yield Compiled(name, reason=f"Triton: {_first_error(str(error))}")
            continue
        (symbol,) = instructions(kernel.asm["cubin"])
        forms = {form: kernel.asm[form] for form in ("ttir", "ttgir", "llir") if form in kernel.asm}
        yield Compiled(name, symbol, kernel.asm["cubin"], kernel.asm["ptx"], None, kernel.metadata.shared, forms=forms)


def _spilled(line: str) -> int | None:
    found = re.search(r"(\d+) bytes spilled", line)
    return int(found[1]) if found else None


def _first_error(text: str) -> str:
    """The first line that says what is wrong, without the temporary file it was found in."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()] or ["no message"]
    told = [line for line in lines if re.search(r"\berror\b\s*:|fatal", line) and "Internal Triton" not in line]  # ptxas' own line follows
    first = (told or lines)[0]
    return re.sub(r"^.*?\berror\s*:\s*|^ptxas fatal\s*:\s*", "", first)[:200]


COMPILERS: Mapping[str, Callable[[str, str, str | None], Iterator[Compiled]]] = {
    "torch_inline": _nvcc,
    "cupy_raw": _nvrtc,
    "numba_cuda": _numba,
    "triton_jit": _triton,
}
