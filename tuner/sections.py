"""The machine code inside a binary, apart from its names: two variants with the same code are one."""

import hashlib
import struct

from ..codegen.source import KernelSource

__all__ = ["code_digest"]

_SECTION = struct.Struct("<IIQQQQIIQQ")


def code_digest(image: bytes, source: KernelSource) -> str:
    """SHA-256 over the code and constants of a 64-bit ELF and the way the kernel is launched.

    Falls back to the whole image for a file that is no such ELF.
    """
    digest = hashlib.sha256(repr((source.launch, source.multiples, source.frame is None)).encode())
    for section in _program_sections(image) or [image]:
        digest.update(len(section).to_bytes(8, "little") + section)
    return digest.hexdigest()


def _program_sections(image: bytes) -> list[bytes]:
    if image[:6] != b"\x7fELF\x02\x01":
        return []
    start = struct.unpack_from("<Q", image, 40)[0]
    size, count = struct.unpack_from("<HH", image, 58)
    found = []
    for index in range(count):
        _, kind, _, _, offset, length, *_ = _SECTION.unpack_from(image, start + index * size)
        if kind == 1:  # SHT_PROGBITS
            found.append(image[offset : offset + length])
    return found
