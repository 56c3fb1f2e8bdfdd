"""Generator and autotuner of tiled CUDA matrix-multiplication kernels."""

import os
from _thread import get_ident  # `threading` takes a while, too

TYPE_CHECKING = False  # importing it from `typing` takes a while
if TYPE_CHECKING:
    from .api import (
        DType,
        Layout,
        Memory,
        Problem,
        Served,
        __version__,
        clear,
        emit,
        grouped_matmul,
        load,
        matmul,
        memory,
        prepare,
    )
    from .api import (
        _library as _library,
    )
    from .tuner.tune import tune

__all__ = [
    "DType", "Layout", "Memory", "Problem", "Served", "__version__", "clear", "emit", "grouped_matmul", "load",
    "matmul", "memory", "prepare", "tune",
]  # fmt: skip

# `tilewright.torch` lies in a folder of its own: at the root, `import torch` in a checkout would import it.
__path__.append(f"{__path__[0]}/frameworks")


_importing: set[int] = set()
"""Threads that are importing an attribute of the package."""
_lost = False
"""Whether this process was forked while a thread of its parent was importing."""


def _imported(name: str) -> object:
    """An attribute of the package, imported at its first use: the command line, which lies below this package, can then
    answer Ctrl-C before NumPy is imported."""
    if name not in (*__all__, "_library"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _lost:
        text = "this process was forked while another thread imported tilewright: import what is called before"
        raise ImportError(f"{text} threads start, as by `from tilewright import {name}`")
    from importlib import import_module

    _importing.add(get_ident())
    try:
        home = import_module(".tuner.tune" if name == "tune" else ".api", __name__)
    finally:
        _importing.discard(get_ident())
    globals()[name] = value = getattr(home, name)
    return value


if not TYPE_CHECKING:  # a type checker would take it for every attribute
    __getattr__ = _imported


def _forked() -> None:
    """Note in a child that another thread of the parent was importing: Python would wait for that import for ever."""
    global _lost
    _lost = bool(_importing - {get_ident()})


os.register_at_fork(after_in_child=_forked)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
