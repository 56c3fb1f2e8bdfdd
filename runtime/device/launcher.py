"""Calls, launches and the ranker's trees in C: an extension that the system's compiler makes once, and that the cache
of kernels holds.

Without a C compiler or Python's headers the same work is done in Python, and a call and a look-up take longer.
"""

import importlib.util
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

from ...codegen.source import KernelSource
from .. import settings
from .cache import compile_cached
from .host_compiler import compiled, compiler_command, compiler_version, load_image
from .protocol import Binary

_NAME = "tilewright_launcher"
_PARTS = "launch.c", "call.c", "trees.c", "module.c"
_NAMES = "cc", "gcc", "clang"
_FLAGS = "-x", "c", "-std=c11", "-O2", "-shared", "-fPIC"
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ExtensionCompiler:
    """A Compiler for this Python: the one that CC names, else the first of cc, gcc and clang that the machine has."""

    suffix = "so"

    @property
    def identity(self) -> str:
        """Version of the compiler, its command, and Python. Raises DeviceError without a compiler."""
        return "; ".join((compiler_version(_cc()), " ".join(_command()), str(sysconfig.get_config_var("SOABI"))))

    def build(self, source: KernelSource, folder: str) -> Binary:
        return compiled(_command(), source.name, source.code, folder, _TIMEOUT_S)


def _cc() -> tuple[str, ...]:
    return compiler_command(settings.CC_VARIABLE, _NAMES, "no C compiler: install one")


def _command() -> tuple[str, ...]:
    return *_cc(), *_FLAGS, f"-I{sysconfig.get_path('include')}"


def _loaded(binary: Binary) -> Any:
    def load(path: str) -> Any:
        loader = ExtensionFileLoader(_NAME, path)
        spec = importlib.util.spec_from_loader(_NAME, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module

    return load_image(_NAME, binary.image, load)


@cache
def _extension() -> tuple[Any, str]:
    try:
        compiler, folder = ExtensionCompiler(), Path(__file__).with_name("calls")
        source = KernelSource(_NAME, "\n".join((folder / name).read_text() for name in _PARTS))
        return _loaded(compile_cached(compiler, source)), f"C, {compiler.identity.partition(';')[0]}"
    except Exception as error:  # a compiler, a cache or a loader may fail in many ways, and Python can do the work
        return None, f"Python ({error})"


def module() -> Any:
    """The extension, with the types `Launch` and `Call` and the function `trees`; None where it cannot be had."""
    return _extension()[0]


def described() -> str:
    """Language of the launches: `C` and its compiler, or `Python` and the reason."""
    return _extension()[1]
