"""Ways to have kernels compiled for the host in less time: headers read once a run, no optimization, many at once."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from filelock import FileLock
from tilewright.codegen.errors import DeviceError
from tilewright.codegen.source import KernelSource
from tilewright.runtime.device import host_compiler
from tilewright.runtime.device.host_compiler import HostCompiler, translation_unit


class QuickCompiler(HostCompiler):
    """Sanitizers without optimization: kernels that run for moments are compiled in half the time."""

    @property
    def flags(self) -> tuple[str, ...]:
        flags = super().flags
        return tuple("-O0" if flag == "-O1" else flag for flag in flags)


def numbered(source: KernelSource, number: int) -> KernelSource:
    """The same kernel under a name of its own."""
    name = f"{source.name}_{number}"
    frame = source.frame and source.frame.replace(source.name, name)
    return replace(source, name=name, frame=frame, code=source.code.replace(source.name, name))


def together(sources: Sequence[KernelSource]) -> KernelSource:
    """A text to compile for the host that holds them all, with all that makes them loadable."""
    spaces = (f"namespace planted_{place} {{\n{translation_unit(each)}\n}}\n" for place, each in enumerate(sources))
    return replace(sources[0], name="planted", code="".join(spaces).replace("__global__", ""))  # nothing is left to do


def precompiled(folder: Path) -> Path:
    """A copy of the headers, and beside it what GCC takes for them wherever the flags agree; else it reads the copy.

    Processes may ask for one folder at the same time. Other compilers, and none, get the headers as they are.
    """
    original = host_compiler._HEADERS
    try:
        compiler = host_compiler._compiler()
    except DeviceError:
        return original
    if "clang" in host_compiler._version(compiler):
        return original
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            aside = Path(shutil.copytree(original, f"{folder}.{os.getpid()}"))
            made = aside / "cuda_on_host.h.gch"  # a folder: GCC takes the file in it that fits
            made.mkdir()
            for number, wanted in enumerate((HostCompiler(), QuickCompiler(sanitize=True))):
                flags = [flag for flag in wanted.flags if flag not in ("-x", "c++", "-shared")]
                files = [aside / "cuda_on_host.h", "-o", made / str(number)]
                subprocess.run([compiler, "-x", "c++-header", *flags, "-w", *files], check=True, timeout=60)
            aside.rename(folder)
    return folder
