"""The memory that a launch reads its kernel's arguments from."""

import ctypes
import struct
from functools import cache, partial
from typing import Any

MAP_BYTES = 128
"""Of a tensor map."""
_SLOT_BYTES = 64
"""Each argument begins at a multiple of this, which keeps every type aligned."""


@cache
def _layout(codes: str) -> tuple[struct.Struct, tuple[int, ...], tuple[int, ...]]:
    """How arguments are packed, where each begins and how many bytes it has."""
    packed, starts, sizes, end = "=", list[int](), list[int](), 0
    for code in codes:
        text = f"{MAP_BYTES}s" if code == "m" else code
        starts.append(end)
        sizes.append(struct.calcsize(f"={text}"))
        end += -(-sizes[-1] // _SLOT_BYTES) * _SLOT_BYTES
        packed += f"{text}{end - starts[-1] - sizes[-1]}x"
    return struct.Struct(packed), tuple(starts), tuple(sizes)


class ParameterBlock:
    """Room for the arguments of one kernel, with a list of where they are.

    `codes` has a letter for each: Q an address, i int, I unsigned, f float, d double and m a tensor map, as `struct`
    writes them. Not safe between threads: who fills it and launches holds a lock.
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
        """As `fill`, but raises OverflowError for a float past the range of its type."""

    def fill(self, *values: Any) -> None:
        """Put the arguments of the next launch, floats past the range of their type as infinities.

        Raises struct.error for what its type cannot hold, ValueError for another number of arguments.
        """
        pairs = zip(self._codes, values, strict=True)
        self.pack(*(ctypes.c_float(value).value if code == "f" else value for code, value in pairs))
