"""Compiler of emitted CUDA text for the processor, loading of its libraries, and the search for compilers."""

import hashlib
import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from ...codegen.errors import CompileError, DeviceError, check
from ...codegen.source import KernelSource
from .. import settings
from .protocol import Binary

_HEADERS = Path(__file__).with_name("host")
_FLAGS = (
    "-x", "c++", "-std=c++17", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-fvisibility=hidden",
    "-Wno-unknown-pragmas", "-O2",
)  # fmt: skip
_NAMES = "c++", "g++", "clang++"
Loaded = TypeVar("Loaded")
_numbers = itertools.count(1)
"""Numbers of the libraries that were loaded."""
_VERSION_TIMEOUT_S = 20.0
"""Seconds after which a compiler that was asked for its version counts as broken."""

_KERNEL = re.compile(
    r"__global__\s+void\s+(?:__cluster_dims__\s*\(([^(),]+)[^()]*\)\s*)?(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\("
)
_SECTION = re.compile(r"^// ---- Instructions \(PTX\) -+$\n(.*?)^// ---- The kernel -+$", re.DOTALL | re.MULTILINE)
_SECTION_LINE = re.compile(r"^// ---- (?:Instructions \(PTX\)|The kernel) -+$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^__device__ __forceinline__ [^(\n]*?(\w+)\(", re.MULTILINE)
_ASSEMBLY = re.compile(r'\basm\b(?:\s+volatile)?\s*\(\s*"[^"]')
"""A PTX instruction; an empty text is a compiler barrier, which C++ has too."""
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:(?:__align__|alignas)\s*\(\w+\)\s*)?([\w:\s]+?)\s*\b(\w+)\s*\[\s*\]")


@dataclass(frozen=True, slots=True)
class HostCompiler:
    """A Compiler: the one that CXX names, else the first of c++, g++ and clang++ that the machine has."""

    timeout_s: float = 60.0
    """Seconds after which compiling is ended."""
    suffix, flags = "so", _FLAGS

    @property
    def identity(self) -> str:
        """Version of the compiler, its command, flags, processor and headers. Raises DeviceError without a compiler."""
        model, features = cpu_facts()
        processor = f"{model} {hashlib.sha256(features.encode()).hexdigest()[:8]}"
        compiler = cxx()
        command = " ".join((*compiler, *self.flags))
        return "; ".join((compiler_version(compiler), command, processor, _headers_digest()))

    def build(self, source: KernelSource, folder: str) -> Binary:
        """Compile the text to a shared library. Raises CompileError, also for an instruction outside of its section, or
        one without a twin."""
        command = *cxx(), *self.flags, "-include", str(_HEADERS / "cuda_on_host.h")
        return compiled(command, source.name, translation_unit(source), folder, self.timeout_s)


def compiled(command: tuple[str, ...], name: str, text: str, folder: str, timeout_s: float) -> Binary:
    """Compile a text to the shared library `kernel.so` in `folder`. Raises CompileError, and DeviceError for a compiler
    that cannot be started."""
    path = os.path.join(folder, "kernel.so")
    start = time.perf_counter()
    try:
        done = _run([*command, "-o", path, "-"], text, timeout_s, settings.compiler_environment(folder))
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{name} took longer than {timeout_s:g} s to compile") from error
    if done.returncode:
        lines = done.stderr.splitlines() or [f"{command[0]} ended with {done.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0][:200])
        raise CompileError(f"{name} does not compile for the processor: {first}", done.stderr)
    return Binary(Path(path).read_bytes(), seconds=time.perf_counter() - start)


def load_image(name: str, image: bytes, load: Callable[[str], Loaded]) -> Loaded:
    """Call `load` with the path of a file in memory that holds `image`, close the file and return the result.

    The loader loads no file that has the path, or the device and inode, of a library that is loaded. A loaded library
    keeps its file, so that its inode is not used again. The number of its closed descriptor is, so each path is spelled
    in another way. Raises OSError.
    """
    file = os.memfd_create(name)
    try:
        with open(file, "wb", closefd=False) as written:
            written.write(image)
        spelled = "".join("/." if digit == "1" else "/" for digit in f"{next(_numbers):b}")
        return load(f"/proc/self/fd{spelled}/{file}")
    finally:
        os.close(file)


def translation_unit(source: KernelSource) -> str:
    """The text for the compiler: `on_host`, then the exports of its kernels. Raises CompileError, also for an
    instruction outside of a section of instructions."""
    text = on_host(source.code, source.name)
    instruction = _ASSEMBLY.search(text)
    line = text.count("\n", 0, instruction.start()) + 1 if instruction else 0
    check(
        not instruction, f"{source.name}: line {line} has an instruction outside of the section for them", CompileError
    )
    exports = "".join(f"TILEWRIGHT_EXPORT({name}, {size or 1})\n" for size, name in _KERNEL.findall(source.code))
    return f'#line 1 "{source.name}.cu"\n{text}\n{exports}'


def on_host(code: str, name: str) -> str:
    """Change a text in two places, which keep their number of lines. Each section of instructions becomes declarations
    of the same names in instructions.h; `extern __shared__`, which no macro turns into C++, becomes a pointer. Raises
    CompileError for a section without a beginning or an end."""
    text = _SECTION.sub(_twins, code)
    check(not _SECTION_LINE.search(text), f"{name}: a section of instructions has no beginning or no end", CompileError)
    return _DYNAMIC.sub(r"\1* const \2 = reinterpret_cast<\1*>(tilewright_host::dynamic_shared)", text)


def _twins(section: "re.Match[str]") -> str:
    """Replacement of a section of instructions, of as many lines: declarations of the functions' twins."""
    names = _INSTRUCTION.findall(section[1])
    declared = "".join(f"using tilewright_host::instructions::{name}; " for name in dict.fromkeys(names))
    return declared + "\n" * section[0].count("\n")


def system_text(path: Path) -> str:
    """Text of a file of the system, without blanks around it; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


@cache
def cpu_facts() -> tuple[str, str]:
    """Model of the processor, and the features that -march=native depends on."""
    lines = system_text(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    model = facts.get("model name") or f"{os.uname().machine} {facts.get('CPU part', '')}".strip()
    return model, facts.get("flags") or facts.get("Features", "")


def cxx() -> tuple[str, ...]:
    """The C++ compiler and its arguments. Raises DeviceError without one."""
    missing = "the host device needs a C++ compiler and found none: install one, such as `apt install g++`"
    return compiler_command(settings.CXX_VARIABLE, _NAMES, missing)


def compiler_command(variable: str, names: tuple[str, ...], missing: str) -> tuple[str, ...]:
    """The compiler that an environment variable names, with its arguments; else the first of these names on PATH, else
    the latest version under a name such as `g++-12`. Raises DeviceError for a variable that names no program, and with
    the text `missing` where there is no compiler."""
    if text := settings.compiler(variable):
        return _named(variable, text)
    numbered = (f"{name}-{version}" for name in names for version in sorted(_versions(name), reverse=True))
    path = next(filter(None, map(shutil.which, itertools.chain(names, numbered))), None)
    if path is None:
        raise DeviceError(f"{missing}, or name it by {variable}")
    return (path,)


def _named(variable: str, text: str) -> tuple[str, ...]:
    import shlex  # few processes need it

    try:
        words = [text] if shutil.which(text) else shlex.split(text)  # one path may hold blanks
    except ValueError as error:
        raise DeviceError(f"{variable} must be a compiler and its arguments, got {text!r}: {error}") from error
    name, *arguments = words
    path = shutil.which(name)
    if path is None:
        remedy = f"name a compiler that is installed, or unset {variable}"
        raise DeviceError(f"{variable} is {text!r}, and there is no program {name!r}: {remedy}")
    return (path, *arguments)


def _versions(name: str) -> set[int]:
    """Numbers of the files called `name-<number>` on PATH."""
    files = (file.name for folder in os.get_exec_path() for file in Path(folder).glob(f"{name}-*"))
    endings = (file.removeprefix(f"{name}-") for file in files)
    return {int(ending) for ending in endings if re.fullmatch(r"[0-9]{1,4}", ending)}


def _run(
    command: Sequence[str], text: str, timeout_s: float, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a compiler on a text; its output may be in any encoding. Raises TimeoutExpired, and DeviceError where it
    cannot be started."""
    try:
        return subprocess.run(
            command, input=text, capture_output=True, encoding="utf-8", errors="replace", check=False,
            timeout=timeout_s, env=environment,
        )  # fmt: skip
    except OSError as error:
        raise DeviceError(f"cannot run the compiler {command[0]}: {error.strerror}") from error


def compiler_output(*command: str) -> str:
    """Output of a compiler. Raises DeviceError where it cannot be run."""
    try:
        return _run(command, "", _VERSION_TIMEOUT_S).stdout.strip()
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"the compiler {command[0]} gave no answer within {_VERSION_TIMEOUT_S:g} s") from error


@cache
def compiler_version(compiler: tuple[str, ...]) -> str:
    """First line of a compiler's `--version`, else its path."""
    return (compiler_output(*compiler, "--version").splitlines() or [compiler[0]])[0]


@cache
def _headers_digest() -> str:
    headers = b"".join(path.read_bytes() for path in sorted(_HEADERS.glob("*.h")))
    return hashlib.sha256(headers).hexdigest()[:16]
