"""Ways to have kernels compiled for the host in less time: headers read once, little optimization, many at once; and a
target of each architecture, for tests that care for no device."""

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
"""The typical device of each architecture by the name of that."""


@dataclass(frozen=True, slots=True)
class QuickCompiler(HostCompiler):
    """Kernels that run for moments are compiled in half the time, or in a quarter under sanitizers.

    There undefined behaviour ends the process at once, without a word: what tells it takes a third of compiling.
    """

    sanitize: bool = False
    """Whether addresses and undefined behaviour are checked; the process must have the sanitizer's library preloaded.
    """
    quick_headers: bool = False
    """Under sanitizers the headers are optimized, the kernel is not: it takes longer to compile, and half the time to
    run where most of it goes by in the headers' twins of what only a GPU has."""

    @property
    def flags(self) -> tuple[str, ...]:
        # With -O0 no function is inlined, whatever a pragma says.
        optimized = "-O1" if not self.sanitize else "-O2" if self.quick_headers else "-O0"
        flags = tuple(optimized if flag == "-O2" else flag for flag in HostCompiler.flags)
        return (*flags, *_sanitizing(), "-fsanitize-undefined-trap-on-error") if self.sanitize else flags

    def build(self, source: KernelSource, folder: str) -> Binary:
        given = replace(source, code=_UNOPTIMIZED + source.code) if self.quick_headers else source
        return HostCompiler.build(self, given, folder)


_SANITIZED = ("-g0", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_GCC_SANITIZED = ("-fsanitize-sections=tilewright_shared",)
"""GCC leaves variables in a named section unchecked otherwise; clang has no such flag and checks bounds only."""
_FILLED = ("-ftrivial-auto-var-init=pattern",)
"""Flag by which variables that were never set hold a large number, not a zero by chance. GCC has it from 12 on."""


def _sanitizing() -> tuple[str, ...]:
    """Flags of the system's compiler for its sanitizers."""
    compiler = host_compiler.cxx()
    if "clang" in host_compiler.compiler_version(compiler):
        return (*_SANITIZED, *_FILLED, "-shared-libasan")
    version = int(host_compiler.compiler_output(*compiler, "-dumpversion").partition(".")[0] or 0)
    return (*_SANITIZED, *_GCC_SANITIZED, *(_FILLED if version >= 12 else ()))


_UNOPTIMIZED = '#pragma GCC optimize("O0")\n#pragma clang optimize off\n'


def replaced(source: KernelSource, old: str, new: str) -> KernelSource:
    """The source with the first `old` in its text replaced, and in that of its preparation: what both say stands in
    both. Fails where neither has it."""
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
    """A text to compile for the host that holds them all, with all that makes them loadable."""
    first = {each.preparation.name: each.preparation for each in sources if each.preparation}
    every = enumerate((*first.values(), *sources))
    spaces = (f"namespace planted_{place} {{\n{translation_unit(each)}\n}}\n" for place, each in every)
    return KernelSource("planted", "".join(spaces).replace("__global__", ""))  # nothing is left to do


_BINARIES: dict[tuple[str, str], Binary] = {}
"""The modules that `compile_together` made in this process, by name and text of each kernel."""


def compile_together(wanted: Iterable[tuple[Problem, Config | Fit]]) -> None:
    """Compile what `prepare` will ask for on the host, or certain instances, as few texts: instances of a config share
    its name, so that no two lie in one text."""
    sources = {(source.name, source.code): source for source in (rendered(*each) for each in wanted)}
    missing = [source for key, source in sources.items() if key not in _BINARIES]
    while missing:
        some = list({source.name: source for source in missing}.values())
        binary = compile_cached(QuickCompiler(), together(some))  # which other processes of the run find
        _BINARIES.update({(source.name, source.code): binary for source in some})
        missing = [source for source in missing if source not in some]


def rendered(problem: Problem, chosen: Config | Fit) -> KernelSource:
    """The text of a config's instance for a problem, or of a certain one, on the host."""
    config, fit = (chosen.config, chosen) if isinstance(chosen, Fit) else (chosen, None)
    return render(problem, config, TYPICAL["host"], fit)


def compiled(compiler: Compiler, source: KernelSource) -> Binary:
    """In place of `compile_cached`: what was compiled together, else what the cache has."""
    quick = _BINARIES.get((source.name, source.code)) if isinstance(compiler, HostCompiler) else None
    return quick or compile_cached(compiler, source)


def precompiled(folder: Path) -> Path:
    """A copy of the headers, and beside it what GCC takes for them wherever the flags agree; else it reads the copy.

    Processes may ask for one folder at the same time. Other compilers, and none, get the headers as they are.
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
            made = aside / "cuda_on_host.h.gch"  # a folder: GCC takes the file in it that fits
            made.mkdir()
            sanitized = QuickCompiler(sanitize=True), QuickCompiler(sanitize=True, quick_headers=True)
            for number, each in enumerate((HostCompiler(), QuickCompiler(), *sanitized)):
                flags = [flag for flag in each.flags if flag not in ("-x", "c++", "-shared")]
                files = [aside / "cuda_on_host.h", "-o", made / str(number)]
                subprocess.run([*compiler, "-x", "c++-header", *flags, "-w", *files], check=True, timeout=60)
            aside.rename(folder)
    return folder
