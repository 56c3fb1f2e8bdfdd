"""Emitted files as a program of the processor: their kernels by the host device, CUDA's runtime by fake_cuda."""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from tilewright.codegen.emitted import Emitted
from tilewright.runtime.device import host_compiler
from tilewright.runtime.device.host_compiler import _KERNEL, on_host

_NAMESPACE = re.compile(r"^namespace \w+::(\w+) \{\n(.*?)^\}  // namespace \w+::\1$", re.DOTALL | re.MULTILINE)
"""Kernels of one config, or one that prepares operands, within the bundle's namespace."""
HEADERS = Path(host_compiler.__file__).with_name("host")
FAKE = Path(__file__).parent / "fake_cuda"
COMPILER = shutil.which("g++") or shutil.which("c++")


def one_unit(files: Emitted, name: str) -> str:
    """The text of all .cu files as one unit, behind which `register_kernels_of_NAME()` makes their kernels known."""
    sources = [(filename, text) for filename, text in files.files if filename.endswith((".cu", ".cuh"))]
    sources.sort(key=lambda each: (each[0].endswith("_main.cu"), each[0] == f"{name}.cu"))  # kernels, functions, main
    texts, known = [], []
    for filename, text in sources:
        texts.append(f'#line 1 "{filename}"\n' + on_host(text, filename))
        for label, body in _NAMESPACE.findall(text):
            known += [f"FAKE_KERNEL({size}, {name}_impl::{label}::{kernel})" for kernel, size in kernels_in(body)]
        if "__global__ void empty_kernel()" in text:
            known += [f"FAKE_KERNEL(1, {name}_test::{kernel})" for kernel in ("empty_kernel", "hold_device")]
    register = "\n    ".join(known)
    return "\n".join((*texts, f"static void register_kernels_of_{name}()\n{{\n    {register}\n}}\n"))


def kernels_in(text: str) -> list[tuple[str, str]]:
    """The kernels of a text and each instance of those that are templates, with the CTAs of its clusters."""
    sizes = dict(re.findall(r"constexpr int (\w+)\s*=\s*(\d+);", text))
    found = []
    for size, kernel in _KERNEL.findall(text):
        instances = dict.fromkeys(re.findall(rf"<const void\*>\(({kernel}<[^>]*>)\)", text)) or (kernel,)
        found += [(instance, sizes.get(size, size) or "1") for instance in instances]
    return found


@dataclass(frozen=True, slots=True)
class Program:
    """Emitted files under the name that they have, and the body of a `main` for them: C++ that follows them."""

    files: Emitted
    name: str
    main: str = ""
    """Nothing for the self-test's own."""


def built(programs: Mapping[str, Program], folder: Path, *flags: str) -> Path:
    """A program that holds several, compiled together: its first argument says which one runs, on the rest.

    The headers and templates that every one of them uses take longer to compile than its kernels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    units, mains, chosen = {}, [], []
    for number, (label, each) in enumerate(programs.items()):
        each.files.write(folder)
        text = one_unit(each.files, each.name).replace("int main(int argc", f"int {each.name}_self_test(int argc")
        assert units.setdefault(each.name, text) == text, f"two programs have other files by the name {each.name}"
        main = each.main or f"    return {each.name}_self_test(argc, argv);\n"
        mains.append(
            f"int main_{number}(int argc, char** argv)\n{{\n    register_kernels_of_{each.name}();\n{main}}}\n"
        )
        chosen.append(f'    if (which == "{label}") return main_{number}(argc - 1, argv + 1);\n')
    dispatch = f"int main(int argc, char** argv)\n{{\n    const std::string which = argv[1];\n{''.join(chosen)}}}\n"
    source, program = folder / "unit.cpp", folder / "program"
    texts = "\n".join((*units.values(), *mains, dispatch))
    source.write_text(f"#include <cstdio>\n#include <string>\n#include <cuda_runtime.h>\n{texts}")
    command = [str(COMPILER), "-std=c++20", "-O1", "-pthread", "-Wno-unknown-pragmas", *flags]
    command += [f"-I{FAKE}", f"-I{HEADERS}", f"-I{folder}", str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return program


def built_once(programs: Callable[[], Mapping[str, Program]], folder: Path, *flags: str) -> Path:
    """The program, unless another process has built it there or does so now."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        made = folder / "program"
        return made if made.exists() else built(programs(), folder, *flags)
