"""Generator and autotuner of tiled CUDA matrix-multiplication kernels."""

TYPE_CHECKING = False  # as `typing` has it, whose import takes a while
if TYPE_CHECKING:
    from .api import (
        Layout,
        Memory,
        Problem,
        Served,
        __version__,
        clear,
        emit,
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
    "Layout", "Memory", "Problem", "Served", "__version__", "clear", "emit", "load", "matmul", "memory", "prepare",
    "tune",
]  # fmt: skip

# `tilewright.torch` lies in a folder of its own: at the root it would be what `import torch` finds in a checkout.
__path__.append(f"{__path__[0]}/frameworks")


def __getattr__(name: str) -> object:
    """What the package offers, imported when it is first asked for: the command line, which lies below this package,
    answers Ctrl-C before NumPy is there."""
    if name not in (*__all__, "_library"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = import_module(".tuner.tune" if name == "tune" else ".api", __name__)
    globals()[name] = value = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
