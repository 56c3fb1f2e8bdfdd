"""The host compiler's headers, read by the compiler once for all the kernels of a run."""

import os
import shutil
import subprocess
from pathlib import Path

from filelock import FileLock
from tilewright.codegen.errors import DeviceError
from tilewright.runtime import host_compiler
from tilewright.runtime.host_compiler import HostCompiler


class QuickCompiler(HostCompiler):
    """Sanitizers without optimization: kernels that run for moments are compiled in half the time."""

    @property
    def flags(self) -> tuple[str, ...]:
        flags = super().flags
        return tuple("-O0" if flag == "-O1" else flag for flag in flags)


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
                command = [compiler, "-x", "c++-header", *flags, "-w", aside / "cuda_on_host.h", "-o", made / str(number)]
                subprocess.run(command, check=True, timeout=60)
            aside.rename(folder)
    return folder
