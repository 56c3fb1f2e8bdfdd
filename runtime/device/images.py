"""Loading of shared libraries from memory, so that exactly the image that was checked is run."""

import itertools
import os
from collections.abc import Callable
from typing import TypeVar

Loaded = TypeVar("Loaded")

_numbers = itertools.count(1)


def load_image(name: str, image: bytes, load: Callable[[str], Loaded]) -> Loaded:
    """Call `load` with the path of a file in memory that holds `image`, close the file and return the result.

    The loader takes a library for loaded if it has one with the same path, or the same device and inode. A loaded
    library keeps its file, and so its inode. Its path would return with its descriptor, so each path is spelled in
    another way. Raises OSError.
    """
    file = os.memfd_create(name)
    try:
        with open(file, "wb", closefd=False) as written:
            written.write(image)
        spelled = "".join("/." if digit == "1" else "/" for digit in f"{next(_numbers):b}")
        return load(f"/proc/self/fd{spelled}/{file}")
    finally:
        os.close(file)
