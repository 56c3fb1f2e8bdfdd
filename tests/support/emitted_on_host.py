"""Emitted files as a program of the processor: their kernels by the host device, CUDA's runtime by fake_cuda."""

import re
import shutil
import subprocess
from pathlib import Path

from tilewright.codegen.emitted import Emitted
from tilewright.runtime.device import host_compiler
from tilewright.runtime.device.host_compiler import _DYNAMIC, _KERNEL

_NAMESPACE = re.compile(r"^namespace (k\d+) \{\n(.*?)^\}  // namespace \1$", re.DOTALL | re.MULTILINE)
_HEADERS = Path(host_compiler.__file__).with_name("host")
FAKE = Path(__file__).parent / "fake_cuda"
COMPILER = shutil.which("g++") or shutil.which("c++")


def one_unit(files: Emitted, name: str) -> str:
    """The text of all .cu files as one unit, behind which `register_kernels()` makes their kernels known."""
    sources = [(filename, text) for filename, text in files.files if filename.endswith((".cu", ".cuh"))]
    sources.sort(key=lambda each: (each[0].endswith("_main.cu"), each[0] == f"{name}.cu"))  # kernels, functions, main
    texts, known = [], []
    dynamic = r"\1* const \2 = reinterpret_cast<\1*>(tilewright_host::dynamic_shared)"
    for filename, text in sources:
        texts.append(f'#line 1 "{filename}"\n' + _DYNAMIC.sub(dynamic, text))
        for label, body in _NAMESPACE.findall(text):
            sizes = dict(re.findall(r"constexpr int (\w+)\s*=\s*(\d+);", body))
            for size, kernel in _KERNEL.findall(body):
                known.append(f"FAKE_KERNEL({name}_impl::{label}::{kernel}, {sizes.get(size, size) or 1})")
        if "__global__ void empty_kernel()" in text:
            known.append(f"FAKE_KERNEL({name}_test::empty_kernel, 1)")
    register = "\n    ".join(known)
    return "\n".join((*texts, f"static void register_kernels()\n{{\n    {register}\n}}\n"))


def built(files: Emitted, name: str, main: str, folder: Path, *flags: str) -> Path:
    """A program of the files and `main`, C++ that follows them; the self-test's own main is called self_test then."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder)
    text = one_unit(files, name).replace("int main(int argc", "int self_test(int argc")
    source, program = folder / "unit.cpp", folder / "program"
    source.write_text(f"#include <cuda_runtime.h>\n{text}\n{main}\n")
    command = [str(COMPILER), "-std=c++20", "-O1", "-pthread", "-Wno-unknown-pragmas", *flags]
    command += [f"-I{FAKE}", f"-I{_HEADERS}", f"-I{folder}", str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return program
