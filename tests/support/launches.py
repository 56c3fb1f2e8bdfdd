"""Launches of a loaded function with NumPy scalars, whose types tell how its arguments lie."""

from collections.abc import Sequence

import numpy as np
from tilewright.codegen.source import LaunchConfig
from tilewright.runtime.device.protocol import Function

_CODES = {"L": "Q", "i": "i", "I": "I", "f": "f", "d": "d", "V": "m"}


def launch(function: Function, how: LaunchConfig, arguments: Sequence[np.generic], stream: int = 0) -> None:
    """Put the function on a stream once."""
    codes = "".join(_CODES[argument.dtype.char] for argument in arguments)
    values = [argument.tobytes() if argument.dtype.char == "V" else argument.item() for argument in arguments]
    function.bound(how, codes)(stream, *values)
