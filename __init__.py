"""Generator and autotuner of tiled CUDA matrix-multiplication kernels."""

from .codegen.emit import emit
from .codegen.problem import Problem
from .runtime.product.matmul import load, matmul
from .tuner.tune import tune

__all__ = ["Problem", "emit", "load", "matmul", "tune"]
