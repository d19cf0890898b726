"""The number of machine instructions of each kernel in a cubin (an ELF file), without a disassembler.

The code of kernel `f` is the section `.text.f`. An instruction has 128 bits since Volta. The count includes the NOPs that pad a section to
a multiple of 128 bytes. Formats: the ELF-64 object file format; NVIDIA's CUDA Binary Utilities.
"""

from __future__ import annotations

import struct

INSTRUCTION_BYTES = 16
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr; fields 6, 11, 12 and 13: section table, its entry's size, count, names' index
SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr; fields 0, 4 and 5: name, offset, size
CODE = ".text."


def instructions(cubin: bytes) -> dict[str, int]:
    """Kernel -> number of instructions. Raises ValueError unless `cubin` is a little-endian 64-bit ELF file."""
    return {kernel: len(text) // INSTRUCTION_BYTES for kernel, text in code(cubin).items()}


def code(cubin: bytes) -> dict[str, bytes]:
    """Kernel -> machine code. Raises ValueError unless `cubin` is a little-endian 64-bit ELF file."""
    if len(cubin) < HEADER.size or cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"no cubin: given {len(cubin)} bytes that begin with {cubin[:6]!r}")
    header = HEADER.unpack_from(cubin)
    table, size, count, names = header[6], header[11], header[12], header[13]
    sections = [SECTION.unpack_from(cubin, table + i * size) for i in range(count)]
    start = sections[names][4]
    found = {}
    for name_at, _, _, _, offset, length, *_ in sections:
        begin = start + name_at
        name = cubin[begin : cubin.index(b"\0", begin)].decode()
        if name.startswith(CODE):
            found[name.removeprefix(CODE)] = cubin[offset : offset + length]
    return found


def told(registers: int, spilled_bytes: int, instruction_count: int) -> str:
    """The line that every backend's `compile_only` prints for a kernel."""
    return f"{registers} registers, {spilled_bytes} bytes spilled, {instruction_count} instructions"
