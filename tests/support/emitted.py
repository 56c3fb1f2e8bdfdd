"""Emitted files compiled as a program for the processor, and the bundles and kernels that tests emit.

The host device runs the kernels, and fake_cuda takes the place of CUDA's runtime.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock
from quick import TYPICAL
from tilewright.codegen.bundle import Served
from tilewright.codegen.emit import Layout, emit
from tilewright.codegen.emitted import Emitted
from tilewright.codegen.families import family_named, parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.device import host_compiler
from tilewright.runtime.device.host_compiler import _KERNEL, on_host
from variants import ODD, WHOLE, dtypes, edges, product_families

_NAMESPACE = re.compile(r"^namespace \w+::(\w+) \{\n(.*?)^\}  // namespace \w+::\1$", re.DOTALL | re.MULTILINE)
"""Pattern of the namespace of a config's kernels, or of a kernel that prepares operands, within the bundle's."""
HEADERS = Path(host_compiler.__file__).with_name("host")
FAKE = Path(__file__).parent / "fake_cuda"
COMPILER = shutil.which("g++") or shutil.which("c++")


def one_unit(files: Emitted, name: str) -> str:
    """Text of all .cu files as one unit, whose function `register_kernels_of_NAME()` registers kernels at fake_cuda."""
    sources = [(filename, text) for filename, text in files.files if filename.endswith((".cu", ".cuh"))]
    sources.sort(key=lambda each: (each[0].endswith("_main.cu"), each[0] == f"{name}.cu"))  # kernels, functions, main
    texts, macros = [], []
    for filename, text in sources:
        texts.append(f'#line 1 "{filename}"\n' + on_host(text, filename))
        for label, body in _NAMESPACE.findall(text):
            macros += [f"FAKE_KERNEL({size}, {name}_impl::{label}::{kernel})" for kernel, size in kernels_in(body)]
        if "__global__ void empty_kernel()" in text:
            macros += [f"FAKE_KERNEL(1, {name}_test::{kernel})" for kernel in ("empty_kernel", "hold_device")]
    register = "\n    ".join(macros)
    return "\n".join((*texts, f"static void register_kernels_of_{name}()\n{{\n    {register}\n}}\n"))


def kernels_in(text: str) -> list[tuple[str, str]]:
    """The kernels of a text, and each instance of a kernel that is a template, with the number of CTAs in a cluster."""
    sizes = dict(re.findall(r"constexpr int (\w+)\s*=\s*(\d+);", text))
    kernels = []
    for size, kernel in _KERNEL.findall(text):
        instances = dict.fromkeys(re.findall(rf"<const void\*>\(({kernel}<[^>]*>)\)", text)) or (kernel,)
        kernels += [(instance, sizes.get(size, size) or "1") for instance in instances]
    return kernels


@dataclass(frozen=True, slots=True)
class Program:
    """Emitted files, their name, and the body of a `main` function that calls them."""

    files: Emitted
    name: str
    main: str = ""
    """C++ statements; empty for the `main` of the self-test."""


def built(programs: Mapping[str, Program], folder: Path, *flags: str) -> Path:
    """Compile several programs into one, whose first argument names the program that runs with the other arguments.

    The headers and templates that all programs use take longer to compile than the kernels of one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    units, mains, branches = {}, [], []
    for number, (label, each) in enumerate(programs.items()):
        each.files.write(folder)
        text = one_unit(each.files, each.name).replace("int main(int argc", f"int {each.name}_self_test(int argc")
        assert units.setdefault(each.name, text) == text, f"two programs have different files by the name {each.name}"
        main = each.main or f"    return {each.name}_self_test(argc, argv);\n"
        mains.append(
            f"int main_{number}(int argc, char** argv)\n{{\n    register_kernels_of_{each.name}();\n{main}}}\n"
        )
        branches.append(f'    if (which == "{label}") return main_{number}(argc - 1, argv + 1);\n')
    dispatch = f"int main(int argc, char** argv)\n{{\n    const std::string which = argv[1];\n{''.join(branches)}}}\n"
    source, program = folder / "unit.cpp", folder / "program"
    texts = "\n".join((*units.values(), *mains, dispatch))
    source.write_text(f"#include <cstdio>\n#include <string>\n#include <cuda_runtime.h>\n{texts}")
    command = [str(COMPILER), "-std=c++20", "-O1", "-pthread", "-Wno-unknown-pragmas", *flags]
    command += [f"-I{FAKE}", f"-I{HEADERS}", f"-I{folder}", str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return program


def built_once(programs: Callable[[], Mapping[str, Program]], folder: Path, *flags: str) -> Path:
    """The program of `built`, which one process builds for all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        executable = folder / "program"
        return executable if executable.exists() else built(programs(), folder, *flags)


# ---- Bundles ----------------------------------------------------------------------------------------------------


Row = tuple[str, str, str, str]
"""Config, shape, dtype and transposes of a kernel."""

SHARED_K = "simt:32x32x8,thread=4x4,split_k=3"
TESTED = Layout(main=True)


def served(rows: Sequence[Row], *arches: str) -> list[Served]:
    names = arches or ("sm_90a",)
    return [
        Served(
            Problem.parse(shape, dtype, trans, parse(text).accuracy), parse(text), replace(TYPICAL[arch], sm_count=5)
        )
        for arch in names
        for text, shape, dtype, trans in rows
    ]


def program(rows: Sequence[Row], name: str, layout: Layout = TESTED, main: str = "") -> Program:
    """A bundle of kernels with its self-test, or with the given main function."""
    return Program(emit(served(rows), name, layout), name, main)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


def passes(*command: str | Path) -> str:
    """Run a command that must succeed, and return its output."""
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- Kernels ----------------------------------------------------------------------------------------------------


KERNELS = [kernel for family in product_families() for kernel in edges(family)]
KERNELS += [
    ("simt:64x64x8,thread=4,load=registers,stages=2,fragments=single", ODD),
    ("simt:split_k=3,l2_prefetch,min_ctas=2", ODD),
    ("simt:pack_a,pack_b", "1022x766x510"),
    ("simt:64x64x32,slices=4,slice_barriers,split_k=2,reduce=cluster", ODD),
    ("simt:stream_k=1", WHOLE),
    ("simt:64x64x16,thread=4,slices=2,split_k=12", ODD),
    ("dmma:persistent=4", ODD),
    ("dmma:stream_k=1", ODD),
    ("tf32x3:split_k=3,promote=16", ODD),
]
"""Pairs of a config and the shape for which it is emitted."""
SERVED = [
    (text, shape, dtype.value) for text, shape in KERNELS for dtype in dtypes(family_named(text.partition(":")[0]))
]
"""Each of these kernels in each type that its family computes in."""
TMA = {
    trans: "simt:32x16x64,load=tma,stages=3,thread=4,slices=2,split_k=2,"
    f"k_inner_a={int(trans[0] == 'n')},k_inner_b={int(trans[1] == 't')}"
    for trans in ("nn", "nt", "tn", "tt")
}
"""A kernel that loads by TMA for each pair of transposes: k is innermost in its tiles where it is in memory."""
