"""What a compiled binary tells: a kernel's registers and memory, and which two variants are the same code."""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ...codegen.errors import CompileError, check

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL_BYTES = 24
_PROGBITS, _SYMTAB = 1, 2
# Attributes of .nv.info: the symbol's index and one number, as nvdisasm and cuobjdump read them.
_SVAL, _REGCOUNT, _FRAME_SIZE = 4, 0x2F, 0x11


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


def _sections(image: bytes) -> list[_Section]:
    """The sections of a 64-bit little-endian ELF; none for anything else."""
    if image[:6] != b"\x7fELF\x02\x01":
        return []
    start = struct.unpack_from("<Q", image, 40)[0]
    size, count, names = struct.unpack_from("<HHH", image, 58)
    rows = [_SECTION.unpack_from(image, start + index * size) for index in range(count)]
    return [_Section(_text(image, rows[names][4] + row[0]), row[1], row[4], row[5], row[6]) for row in rows]


def _text(image: bytes, offset: int) -> str:
    return image[offset : image.index(b"\0", offset)].decode()


def kernel_resources(cubin: bytes, name: str, reserved_bytes: int) -> tuple[int, int, int]:
    """Registers of a thread that the kernel `name` needs, its bytes of local memory (spilled registers, and arrays that
    have no register), and bytes of static shared memory of a block without the `reserved_bytes` that the system takes.

    Raises CompileError if the kernel is not in the cubin.
    """
    sections = _sections(cubin)
    found = {section.name: section for section in sections}
    values = {(attribute, symbol): value for attribute, symbol, value in _info(cubin, sections)}
    check((_REGCOUNT, name) in values, f"no kernel {name} in the compiled binary", CompileError)
    shared = found.get(f".nv.shared.{name}")
    # Where the section of the system's share exists, each kernel's counts that share too.
    counted = reserved_bytes if ".nv.shared.reserved.0" in found else 0
    smem_bytes = shared.size - counted if shared else 0
    return values[_REGCOUNT, name], values.get((_FRAME_SIZE, name), 0), max(0, smem_bytes)


def _info(image: bytes, sections: list[_Section]) -> Iterator[tuple[int, str, int]]:
    """Attribute, symbol and value of each entry of .nv.info."""
    table = next((section for section in sections if section.kind == _SYMTAB), None)
    info = next((section for section in sections if section.name == ".nv.info"), None)
    if table is None or info is None:
        return
    strings = sections[table.link].offset
    offset, end = info.offset, info.offset + info.size
    while offset < end:
        form, attribute, size = struct.unpack_from("<BBH", image, offset)
        offset += 4
        if form != _SVAL:
            continue  # the value is in the two bytes of the size
        if size == 8:
            index, value = struct.unpack_from("<II", image, offset)
            (name,) = struct.unpack_from("<I", image, table.offset + _SYMBOL_BYTES * index)
            yield attribute, _text(image, strings + name), value
        offset += size


def code_digest(image: bytes, launched: object) -> str:
    """SHA-256 over the code and constants of a binary and `launched`, the way its kernel is launched: equal for
    variants that differ in their names alone. Falls back to the whole image for a file that is no ELF."""
    digest = hashlib.sha256(repr(launched).encode())
    parts = [s for s in _sections(image) if s.kind == _PROGBITS]
    for part in parts or [_Section("", 0, 0, len(image), 0)]:
        digest.update(part.size.to_bytes(8, "little") + image[part.offset : part.offset + part.size])
    return digest.hexdigest()
