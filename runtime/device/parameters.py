"""Memory for the arguments of a kernel."""

import ctypes
import struct
from functools import cache, partial
from typing import Any

MAP_BYTES = 128
"""Bytes of a tensor map."""
_SLOT_BYTES = 64
"""Bytes to whose multiples arguments are aligned, which suffices for every type."""


@cache
def _layout(codes: str) -> tuple[struct.Struct, tuple[int, ...], tuple[int, ...]]:
    """Packing of arguments, and the offset and size in bytes of each."""
    packed, starts, sizes, end = "=", list[int](), list[int](), 0
    for code in codes:
        text = f"{MAP_BYTES}s" if code == "m" else code
        starts.append(end)
        sizes.append(struct.calcsize(f"={text}"))
        end += -(-sizes[-1] // _SLOT_BYTES) * _SLOT_BYTES
        packed += f"{text}{end - starts[-1] - sizes[-1]}x"
    return struct.Struct(packed), tuple(starts), tuple(sizes)


class ParameterBlock:
    """Memory for the arguments of one kernel, with their addresses.

    `codes` has a letter for each: Q an address, i int, I unsigned, f float, d double and m a tensor map, as in
    `struct`. Not safe between threads: the caller who fills it and launches holds a lock.
    """

    def __init__(self, codes: str) -> None:
        layout, starts, sizes = _layout(codes)
        self.memory = ctypes.create_string_buffer(layout.size + _SLOT_BYTES)
        skipped = -ctypes.addressof(self.memory) % _SLOT_BYTES
        first = ctypes.addressof(self.memory) + skipped
        self.count = len(codes)
        self.pointers = (ctypes.c_void_p * self.count)(*(first + start for start in starts))
        """Address of each argument."""
        self.sizes = (ctypes.c_uint64 * self.count)(*sizes)
        """Bytes of each argument."""
        self._codes = codes
        self.pack = partial(layout.pack_into, self.memory, skipped)
        """Write the arguments of the next launch. Raises OverflowError for a float past the range of its type, and
        otherwise as `fill`."""

    def fill(self, *values: Any) -> None:
        """Write the arguments of the next launch, floats past the range of their type as infinities.

        Raises struct.error for a value that its type cannot hold, ValueError for another number of arguments.
        """
        pairs = zip(self._codes, values, strict=True)
        self.pack(*(ctypes.c_float(value).value if code == "f" else value for code, value in pairs))
