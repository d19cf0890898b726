"""The machine code that a launch runs: a digest of the kernels' instructions, launch configurations and scalar parameters.

CUPTI's callbacks report every module that is loaded, with its cubin, and every launch: torch, CuPy, Numba and Triton all go through the
driver. Two commits with equal digests run the same kernels in the same way, whatever their sources.

Structures: cupti_callbacks.h (CUpti_ResourceData, CUpti_ModuleResourceData), generated_cuda_meta.h (cuLaunchKernel_params), cuda.h
(CUlaunchConfig); kernel parameters: EIATTR_KPARAM_INFO in the section .nv.info.<kernel>, as cuobjdump -elf shows it."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from opwise.profiling import cupti

RESOURCE, MODULE_LOADED, MODULE_UNLOADED = 3, 6, 7  # CUpti_CallbackDomain, CUpti_CallbackIdResource
KPARAM_INFO = 0x17  # EIATTR_KPARAM_INFO, of format 4: its size in bytes, then index, ordinal and offset, size << 18
POINTERS_FROM = 1 << 32  # what is above is an address, which differs from process to process; sizes and shares are below


class ResourceData(ctypes.Structure):
    _fields_ = (("context", ctypes.c_void_p), ("handle", ctypes.c_void_p), ("descriptor", ctypes.c_void_p))


class ModuleData(ctypes.Structure):
    _fields_ = (("number", ctypes.c_uint32), ("size", ctypes.c_size_t), ("cubin", ctypes.c_void_p))


class LaunchParameters(ctypes.Structure):
    """cuLaunchKernel_params, and cuLaunchCooperativeKernel_params, which begins so."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("shape", ctypes.c_uint * 6),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
    )


class LaunchConfig(ctypes.Structure):
    """The beginning of CUlaunchConfig."""

    _fields_ = (("shape", ctypes.c_uint * 6), ("shared_bytes", ctypes.c_uint))


class LaunchExParameters(ctypes.Structure):
    """cuLaunchKernelEx_params."""

    _fields_ = (("config", ctypes.POINTER(LaunchConfig)), ("function", ctypes.c_void_p), ("values", ctypes.POINTER(ctypes.c_void_p)))


@dataclass(frozen=True)
class Code:
    """A kernel of a module: its machine code, and (offset, bytes) of each parameter in order."""

    text: bytes
    parameters: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Launched:
    """One launch: grid and block in x, y, z; dynamic shared memory in bytes; the parameters of at most 8 bytes that are no addresses. code:
    None if the kernel cannot be identified."""

    kernel: str
    code: Code | None
    shape: tuple[int, ...]
    shared_bytes: int
    scalars: tuple[int, ...]


@dataclass
class Seen:
    """Modules and launches since `watching` began. missing: why nothing is seen, "" otherwise.

    CUPTI gives a launch's kernel name and handle, but only names for a module's kernels. Triton's specialisations of one kernel share a
    name: a handle is taken as the kernel of its name that was loaded and not yet launched, if there is exactly one."""

    waiting: dict[str, list[Code]] = field(default_factory=dict)  # kernel -> loaded, and by no launch so far
    known: dict[int, tuple[str, Code]] = field(default_factory=dict)  # handle -> kernel, code
    launches: list[Launched] = field(default_factory=list)
    missing: str = ""

    def loaded(self, cubin: bytes) -> None:
        for kernel, code in kernels(cubin).items():
            found = self.waiting.setdefault(kernel, [])
            found += [code] if code not in found else []

    def unloaded(self, cubin: bytes) -> None:
        """Forgets a module's handles, which may later be another's."""
        gone = kernels(cubin)
        self.known = {handle: (kernel, code) for handle, (kernel, code) in self.known.items() if gone.get(kernel) != code}

    def code_of(self, handle: int, kernel: str) -> Code | None:
        if handle not in self.known:
            of_name = self.waiting.pop(kernel, []) or list({code for name, code in self.known.values() if name == kernel})
            if len(of_name) != 1:
                return None
            self.known[handle] = kernel, of_name[0]
        return self.known[handle][1]

    @staticmethod
    def digest(launches: Sequence[Launched]) -> str:
        """The digest of these launches; "" if some kernel's code was not seen, or nothing was launched."""
        found = hashlib.sha256()
        for launch in launches:
            if launch.code is None:
                return ""
            found.update(launch.code.text + repr((launch.shape, launch.shared_bytes, launch.scalars)).encode())
        return found.hexdigest()[:16] if launches else ""


def kernels(cubin: bytes) -> dict[str, Code]:
    """Raises ValueError for anything but a cubin."""
    found = sections(cubin)
    names = [name.removeprefix(".text.") for name in found if name.startswith(".text.")]
    return {name: Code(found[f".text.{name}"], parameters(found.get(f".nv.info.{name}", b""))) for name in names}


def sections(cubin: bytes) -> dict[str, bytes]:
    """Name -> content of the sections of an ELF-64 file. Raises ValueError for another. backends/cubin.py is not used, since asv may
    replace it by an old commit's."""
    if len(cubin) < 64 or cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"no cubin: given {len(cubin)} bytes that begin with {cubin[:6]!r}")
    table, size, count, names = *struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<HHH", cubin, 58)
    entries = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    start, found = entries[names][4], {}
    for name_at, kind, _, _, offset, length in entries:
        begin = start + name_at
        nothing_stored = kind == 8  # SHT_NOBITS
        found[cubin[begin : cubin.index(b"\0", begin)].decode()] = b"" if nothing_stored else cubin[offset : offset + length]
    return found


def parameters(info: bytes) -> tuple[tuple[int, int], ...]:
    """(offset, bytes) of each parameter of a kernel, by its .nv.info section: records of a format, an attribute and a value."""
    found: dict[int, tuple[int, int]] = {}
    at = 0
    while at + 4 <= len(info):
        kind, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if kind != 4:  # the value stands in the record itself
            continue
        if attribute == KPARAM_INFO and value >= 12:
            _, ordinal, offset, packed = struct.unpack_from("<IHHI", info, at)
            found[ordinal] = offset, packed >> 18
        at += value
    return tuple(found[i] for i in sorted(found))


@contextlib.contextmanager
def watching(library: ctypes.CDLL | None = None) -> Iterator[Seen]:
    """Collects modules and launches of this process. CUPTI has one subscriber per process, so no profiler can run at the same time."""
    seen = Seen()

    def called(_: object, domain: int, number: int, data: int) -> None:
        with contextlib.suppress(Exception):  # an exception cannot leave a callback: what was not seen has no digest
            if domain == RESOURCE and number in (MODULE_LOADED, MODULE_UNLOADED):
                module = ModuleData.from_address(ResourceData.from_address(data).descriptor)
                (seen.loaded if number == MODULE_LOADED else seen.unloaded)(ctypes.string_at(module.cubin, module.size))
            elif domain == cupti.DRIVER_API:
                call = cupti.CallbackData.from_address(data)
                name = (call.function or b"").decode()
                if call.site == cupti.ENTER and name.startswith("cuLaunch") and call.symbol:
                    seen.launches.append(_launched(name, call.symbol.decode(), call.parameters, seen))

    with cupti.subscribed(called, (RESOURCE, cupti.DRIVER_API), library) as missing:
        seen.missing = missing
        yield seen


def _launched(function: str, kernel: str, address: int, seen: Seen) -> Launched:
    by: LaunchExParameters | LaunchParameters
    if function.startswith("cuLaunchKernelEx"):
        by = LaunchExParameters.from_address(address)
        how = by.config.contents
    else:
        by = how = LaunchParameters.from_address(address)
    code, values = seen.code_of(by.function or 0, kernel), by.values
    scalars = []
    for i, (_, size) in enumerate(code.parameters if code and values else ()):
        if size <= 8:
            value = int.from_bytes(ctypes.string_at(values[i], size), "little")
            scalars.append(value if value < POINTERS_FROM else POINTERS_FROM)
    return Launched(kernel, code, tuple(how.shape), int(how.shared_bytes), tuple(scalars))


def digests(turn: Callable[[str, str], None], device_name: str, cells: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """(implementation, workload) -> the digest of its launch; "" if it does not build, or some of its code was not seen. A worker's request
    ("apply")."""
    import torch

    from opwise.backends import implementation
    from opwise.ops import OPS
    from opwise.ops.spec import Workload

    device = torch.device(device_name)
    found: dict[tuple[str, str], str] = {}
    torch.zeros(1, device=device)
    with watching() as seen:
        for name, text in cells:
            turn(name, "build")
            found[name, text] = ""
            workload = Workload.parse(text)
            with contextlib.suppress(Exception), workload.precision(), torch.no_grad():
                inputs = OPS[workload.op].make_inputs(workload, device, 0)
                out = OPS[workload.op].empty_output(*inputs)
                launch = implementation(name, device).prepare(*inputs, out=out)
                launch()  # the first loads what is loaded late, and may set things up
                turn(name, "launch")
                torch.cuda.synchronize(device)
                begin = len(seen.launches)
                launch()
                torch.cuda.synchronize(device)
                found[name, text] = seen.digest(seen.launches[begin:])
    return found
