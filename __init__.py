"""Generator and autotuner of tiled CUDA matrix-multiplication kernels."""

from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from .codegen.bundle import Served
from .codegen.emit import Layout, emit
from .codegen.problem import Problem
from .runtime.product.matmul import Library, Memory
from .tuner.first_use import measured
from .tuner.search.nearest import nearest
from .tuner.tune import tune

__all__ = [
    "Layout", "Memory", "Problem", "Served", "__version__", "clear", "emit", "load", "matmul", "memory", "prepare",
    "tune",
]  # fmt: skip

try:
    __version__ = metadata.version("tilewright")
except metadata.PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"

# `tilewright.torch` lies in a folder of its own: at the root it would be what `import torch` finds in a checkout.
__path__.append(str(Path(__file__).with_name("frameworks")))


def _differentiable(a: Any, b: Any, alpha: float) -> Any:
    return import_module("tilewright.torch").matmul(a, b, alpha=alpha)  # imports torch, as nothing else does


_library = Library(nearest, measured, _differentiable)
load, matmul, prepare = _library.load, _library.matmul, _library.prepare
memory, clear = _library.memory, _library.clear
