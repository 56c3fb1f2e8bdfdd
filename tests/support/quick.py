"""Ways to compile kernels for the host in less time: precompiled headers, little optimization, many kernels in a text.

TYPICAL has a target of each architecture, for tests that need no device.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.errors import DeviceError
from tilewright.codegen.fit import Fit
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import KernelSource
from tilewright.codegen.target import Target
from tilewright.runtime.device import host_compiler
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.host_compiler import HostCompiler, translation_unit
from tilewright.runtime.device.known import typical
from tilewright.runtime.device.protocol import Binary, Compiler

_HOST = Target(
    arch=ARCHES["host"], sm_count=2, clock_mhz=3e3, memory_bytes=1 << 34, l2_bytes=1 << 25, bandwidth_gbs=20.0
)

TYPICAL: dict[str, Target] = {name: _HOST if arch.is_host else typical(arch) for name, arch in ARCHES.items()}
"""The typical device of each architecture, by the architecture's name."""


@dataclass(frozen=True, slots=True)
class QuickCompiler(HostCompiler):
    """A compiler for kernels that run for moments. It takes half the time, or a quarter under sanitizers.

    Under sanitizers undefined behaviour ends the process without a message, as messages take a third of compiling.
    """

    sanitize: bool = False
    """Whether sanitizers check addresses and undefined behaviour. The process must have their library preloaded."""
    quick_headers: bool = False
    """Whether the headers are optimized under sanitizers, but not the kernel. Compiling takes longer. Kernels that
    spend most of their time in the headers' substitutes for instructions of a GPU run in half the time."""

    @property
    def flags(self) -> tuple[str, ...]:
        # With -O0 no function is inlined, whatever a pragma says.
        optimized = "-O1" if not self.sanitize else "-O2" if self.quick_headers else "-O0"
        flags = tuple(optimized if flag == "-O2" else flag for flag in HostCompiler.flags)
        return (*flags, *_sanitizing(), "-fsanitize-undefined-trap-on-error") if self.sanitize else flags

    def build(self, source: KernelSource, folder: str) -> Binary:
        source = replace(source, code=_UNOPTIMIZED + source.code) if self.quick_headers else source
        return HostCompiler.build(self, source, folder)


_SANITIZED = ("-g0", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_GCC_SANITIZED = ("-fsanitize-sections=tilewright_shared",)
"""Flag by which GCC checks variables in a named section too. Clang has no such flag and checks bounds only."""
_FILLED = ("-ftrivial-auto-var-init=pattern",)
"""Flag by which variables that were never set hold a large number, not a zero by chance; GCC has it from 12 on."""


def _sanitizing() -> tuple[str, ...]:
    """Flags of the system's compiler for its sanitizers."""
    compiler = host_compiler.cxx()
    if "clang" in host_compiler.compiler_version(compiler):
        return (*_SANITIZED, *_FILLED, "-shared-libasan")
    version = int(host_compiler.compiler_output(*compiler, "-dumpversion").partition(".")[0] or 0)
    return (*_SANITIZED, *_GCC_SANITIZED, *(_FILLED if version >= 12 else ()))


_UNOPTIMIZED = '#pragma GCC optimize("O0")\n#pragma clang optimize off\n'


def replaced(source: KernelSource, old: str, new: str) -> KernelSource:
    """The source with the first `old` replaced in its text, and in the text of its preparation. Fails where neither
    has it."""
    first = source.preparation
    assert old in source.code or (first and old in first.code), f"{old!r} is not in the text of {source.name}"
    if first and old in first.code:
        first = replaced(first, old, new)
    return replace(source, code=source.code.replace(old, new, 1), preparation=first)


def numbered(source: KernelSource, number: int) -> KernelSource:
    """The same kernel under a name of its own."""
    name = f"{source.name}_{number}"
    first = source.preparation and numbered(source.preparation, number)
    return replace(source, name=name, preparation=first, code=source.code.replace(source.name, name))


def together(sources: Sequence[KernelSource]) -> KernelSource:
    """One text for the host compiler with all these kernels and their preparations, ready to be loaded."""
    first = {each.preparation.name: each.preparation for each in sources if each.preparation}
    kernels = enumerate((*first.values(), *sources))
    spaces = (f"namespace planted_{place} {{\n{translation_unit(each)}\n}}\n" for place, each in kernels)
    return KernelSource("planted", "".join(spaces).replace("__global__", ""))  # without kernels to translate again


_BINARIES: dict[tuple[str, str], Binary] = {}
"""Modules that `compile_together` compiled in this process, by name and text of each kernel in them."""


def compile_together(instances: Iterable[tuple[Problem, Config | Fit]]) -> None:
    """Compile the instances that `prepare` chooses on the host for configs, or given fits, as few texts. Instances of a
    config have one name, so that no two of them are in one text."""
    sources = {(source.name, source.code): source for source in (rendered(*each) for each in instances)}
    missing = [source for key, source in sources.items() if key not in _BINARIES]
    while missing:
        batch = list({source.name: source for source in missing}.values())
        binary = compile_cached(QuickCompiler(), together(batch))  # other processes of the run find it in the cache
        _BINARIES.update({(source.name, source.code): binary for source in batch})
        missing = [source for source in missing if source not in batch]


def rendered(problem: Problem, chosen: Config | Fit) -> KernelSource:
    """Source on the host of the instance that a config has for a problem, or of a given fit."""
    config, fit = (chosen.config, chosen) if isinstance(chosen, Fit) else (chosen, None)
    return render(problem, config, TYPICAL["host"], fit)


def compiled(compiler: Compiler, source: KernelSource) -> Binary:
    """Substitute for `compile_cached` that first looks among the kernels that were compiled together."""
    quick = _BINARIES.get((source.name, source.code)) if isinstance(compiler, HostCompiler) else None
    return quick or compile_cached(compiler, source)


def precompiled(folder: Path) -> Path:
    """Folder with a copy of the headers, and precompiled headers that GCC uses where the flags agree.

    Several processes may call this with one folder at a time. Without GCC the result is the folder of the headers.
    """
    original = host_compiler._HEADERS
    try:
        compiler = host_compiler.cxx()
    except DeviceError:
        return original
    if "clang" in host_compiler.compiler_version(compiler):
        return original
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            aside = Path(shutil.copytree(original, f"{folder}.{os.getpid()}"))
            variants = aside / "cuda_on_host.h.gch"  # GCC takes the file in this folder that fits the flags
            variants.mkdir()
            sanitized = QuickCompiler(sanitize=True), QuickCompiler(sanitize=True, quick_headers=True)
            for number, each in enumerate((HostCompiler(), QuickCompiler(), *sanitized)):
                flags = [flag for flag in each.flags if flag not in ("-x", "c++", "-shared")]
                files = [aside / "cuda_on_host.h", "-o", variants / str(number)]
                subprocess.run([*compiler, "-x", "c++-header", *flags, "-w", *files], check=True, timeout=60)
            aside.rename(folder)
    return folder
