"""Generator and autotuner of tiled CUDA matrix-multiplication kernels."""

from .codegen.emit import emit
from .codegen.problem import Problem
from .runtime.product.matmul import Library
from .tuner.search.nearest import nearest
from .tuner.tune import tune

__all__ = ["Problem", "emit", "load", "matmul", "tune"]

_library = Library(nearest)
load, matmul = _library.load, _library.matmul
