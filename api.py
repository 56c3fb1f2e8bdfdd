"""Public names of the package."""

from importlib import import_module
from typing import Any

from .codegen.bundle import Served
from .codegen.emit import Layout
from .codegen.families import families
from .codegen.problem import DType, Problem
from .runtime.device import host as _host  # noqa: F401
from .runtime.device.protocol import Device
from .runtime.product.matmul import Library, Memory
from .runtime.store.lookup import LookupResult
from .runtime.store.store import Store
from .runtime.store.versions import package_version
from .tuner.choose.fallback import faster
from .tuner.choose.shortlist import look_up

__all__ = [
    "DType", "Layout", "Memory", "Problem", "Served", "__version__", "clear", "emit", "grouped_matmul", "load",
    "matmul", "memory", "prepare",
]  # fmt: skip

__version__ = package_version()
# With the host device above, a first product on the processor imports nothing more: a process that is forked while a
# thread imports a module waits for ever for the module's lock.
families()


def _differentiable(a: Any, b: Any, alpha: Any, accuracy: Any, vendor: Any, *offsets: Any) -> Any:
    module = import_module("tilewright.torch")  # the only import of torch
    if offsets:
        return module.grouped_matmul(a, b, *offsets, alpha=alpha, accuracy=accuracy)
    return module.matmul(a, b, alpha=alpha, accuracy=accuracy, vendor=vendor)


def _measured(device: Device, problem: Problem, store: Store, looked_up: LookupResult, seconds: float) -> LookupResult:
    from .tuner.first_use import measured  # it imports the whole tuner, and most programs measure nothing

    return measured(device, problem, store, looked_up, seconds)


_library = Library(look_up, _measured, _differentiable, faster)
load, matmul, prepare, emit = _library.load, _library.matmul, _library.prepare, _library.emit
grouped_matmul = _library.grouped_matmul
memory, clear = _library.memory, _library.clear
