"""Contents of compiled binaries: a kernel's registers and memory, and a digest of its code."""

import hashlib
import struct
from collections.abc import Iterator
from io import BytesIO

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from ...codegen.errors import CompileError, check

# Format and attributes of entries in .nv.info that hold a symbol's index and one number.
_SVAL, _REGCOUNT, _FRAME_SIZE = 4, 0x2F, 0x11


def kernel_resources(cubin: bytes, name: str, reserved_bytes: int) -> tuple[int, int, int]:
    """Registers and bytes of local memory (spilled registers, and arrays without registers) of a thread of the kernel
    `name`, and bytes of static shared memory of a block, without the `reserved_bytes` of the system.

    Raises CompileError if the kernel is not in the cubin.
    """
    elf = ELFFile(BytesIO(cubin))
    values = {(attribute, symbol): value for attribute, symbol, value in _info(elf)}
    check((_REGCOUNT, name) in values, f"no kernel {name} in the compiled binary", CompileError)
    shared = elf.get_section_by_name(f".nv.shared.{name}")
    # If there is a section for the system's share, each kernel's section contains that share too.
    counted = reserved_bytes if elf.get_section_by_name(".nv.shared.reserved.0") else 0
    smem_bytes = shared.data_size - counted if shared else 0
    return values[_REGCOUNT, name], values.get((_FRAME_SIZE, name), 0), max(0, smem_bytes)


def _info(elf: ELFFile) -> Iterator[tuple[int, str, int]]:
    """Attribute, symbol and value of each entry of .nv.info."""
    symbols, info = elf.get_section_by_name(".symtab"), elf.get_section_by_name(".nv.info")
    if info is None or not isinstance(symbols, SymbolTableSection):
        return
    data, offset = info.data(), 0
    while offset < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, offset)
        offset += 4
        if form != _SVAL:
            continue  # the size field holds the value
        if size == 8:
            index, value = struct.unpack_from("<II", data, offset)
            yield attribute, symbols.get_symbol(index).name, value
        offset += size


def code_digest(image: bytes, launched: object) -> str:
    """SHA-256 over the code and constants of a binary and over `launched`, the description of its launch: equal for
    variants that differ in their names alone. The whole image counts for a file that is no ELF."""
    digest = hashlib.sha256(repr(launched).encode())
    try:
        parts = [each.data() for each in ELFFile(BytesIO(image)).iter_sections("SHT_PROGBITS")]
    except ELFError:
        parts = [image]
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
