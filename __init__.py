"""Generator and autotuner of tiled CUDA matrix-multiplication kernels."""

from importlib import metadata
from typing import Any

from .codegen.emit import emit
from .codegen.problem import Problem
from .runtime.product.matmul import Library, Memory
from .tuner.search.nearest import nearest
from .tuner.tune import tune

__all__ = ["Memory", "Problem", "__version__", "clear", "emit", "load", "matmul", "memory", "prepare", "tune"]

__version__ = metadata.version("tilewright")


def _differentiable(a: Any, b: Any, alpha: float) -> Any:
    from .torch import matmul  # imports torch, as nothing else does

    return matmul(a, b, alpha=alpha)


_library = Library(nearest, _differentiable)
load, matmul, prepare = _library.load, _library.matmul, _library.prepare
memory, clear = _library.memory, _library.clear
