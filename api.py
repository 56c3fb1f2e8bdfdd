"""What `import tilewright` offers."""

from importlib import import_module
from typing import Any

from .codegen.bundle import Served
from .codegen.emit import Layout, emit
from .codegen.problem import Problem
from .runtime.product.matmul import Library, Memory
from .runtime.store.versions import package_version
from .tuner.first_use import measured
from .tuner.search.nearest import nearest
from .tuner.tune import tune
from .tuner.vendor import faster

__all__ = [
    "Layout", "Memory", "Problem", "Served", "__version__", "clear", "emit", "load", "matmul", "memory", "prepare",
    "tune",
]  # fmt: skip

__version__ = package_version()


def _differentiable(a: Any, b: Any, alpha: float, accuracy: str, vendor: str | None) -> Any:
    matmul = import_module("tilewright.torch").matmul  # imports torch, as nothing else does
    return matmul(a, b, alpha=alpha, accuracy=accuracy, vendor=vendor)


_library = Library(nearest, measured, _differentiable, faster)
load, matmul, prepare = _library.load, _library.matmul, _library.prepare
memory, clear = _library.memory, _library.clear
