"""Shared libraries that are loaded from memory: what runs is the image that was checked, whatever lies at its path."""

import itertools
import os
from collections.abc import Callable
from typing import TypeVar

Loaded = TypeVar("Loaded")

_numbers = itertools.count(1)


def load_image(name: str, image: bytes, load: Callable[[str], Loaded]) -> Loaded:
    """Call `load` with the path of a file in memory that holds `image`, close the file and return the result.

    The loader takes a library for loaded if it has one of the same path, or of the same device and inode. The inode is
    the library's own for as long as it is loaded, which keeps its file. The path would be the next one's too, as
    descriptors are given out again: so no two paths are spelled alike. Raises OSError.
    """
    file = os.memfd_create(name)
    try:
        with open(file, "wb", closefd=False) as written:
            written.write(image)
        spelled = "".join("/." if digit == "1" else "/" for digit in f"{next(_numbers):b}")
        return load(f"/proc/self/fd{spelled}/{file}")
    finally:
        os.close(file)
