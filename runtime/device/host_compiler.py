"""Compiles the emitted CUDA text for the processor with the system's C++ compiler."""

import hashlib
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...codegen.errors import CompileError, DeviceError
from ...codegen.source import KernelSource
from .protocol import Binary

_HEADERS = Path(__file__).with_name("host")
_FLAGS = (
    "-x", "c++", "-std=c++17", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-fvisibility=hidden",
    "-Wno-unknown-pragmas",
)  # fmt: skip
_FAST = ("-O2",)
_SANITIZED = ("-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_GCC_SANITIZED = ("-fsanitize-sections=tilewright_shared",)
"""GCC leaves variables in a named section unchecked otherwise; clang has no such flag and checks bounds only."""
_FILLED = ("-ftrivial-auto-var-init=pattern",)
"""A variable that was never set holds a large number, not a zero by chance. GCC has it from 12 on."""

_KERNEL = re.compile(
    r"__global__\s+void\s+(?:__cluster_dims__\s*\(([^(),]+)[^()]*\)\s*)?(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\("
)
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:(?:__align__|alignas)\s*\(\w+\)\s*)?([\w:\s]+?)\s*\b(\w+)\s*\[\s*\]")


@dataclass(frozen=True, slots=True)
class HostCompiler:
    """A Compiler: the first of c++, g++ and clang++ that the machine has."""

    sanitize: bool = False
    """Check every address and undefined behaviour; the process must then have the sanitizer's library preloaded."""
    timeout_s: float = 60.0
    """Compiling that takes longer is ended."""
    suffix = "so"

    @property
    def flags(self) -> tuple[str, ...]:
        """What the compiler is told beside the names of files."""
        if not self.sanitize:
            return _FLAGS + _FAST
        compiler = _compiler()
        if "clang" in compiler_version(compiler):
            return (*_FLAGS, *_SANITIZED, *_FILLED, "-shared-libasan")
        filled = _FILLED if int(_output(compiler, "-dumpversion").partition(".")[0] or 0) >= 12 else ()
        return _FLAGS + _SANITIZED + _GCC_SANITIZED + filled

    @property
    def identity(self) -> str:
        """Compiler, version, flags, processor and headers. Raises DeviceError without a compiler."""
        model, features = cpu_facts()
        processor = f"{model} {hashlib.sha256(features.encode()).hexdigest()[:8]}"
        return "; ".join((compiler_version(_compiler()), " ".join(self.flags), processor, _headers_digest()))

    def build(self, source: KernelSource, folder: str) -> Binary:
        command = _compiler(), *self.flags, "-include", str(_HEADERS / "cuda_on_host.h")
        return compiled(command, source.name, translation_unit(source), folder, self.timeout_s)


def compiled(command: tuple[str, ...], name: str, text: str, folder: str, timeout_s: float) -> Binary:
    """What a compiler makes of a text: a shared library `kernel.so` in `folder`. Raises CompileError."""
    path = os.path.join(folder, "kernel.so")
    given = [*command, "-o", path, "-"]
    start = time.perf_counter()
    try:
        done = subprocess.run(given, input=text, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{name} took longer than {timeout_s:g} s to compile") from error
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise CompileError(f"{name} does not compile for the processor: {first}", done.stderr)
    return Binary(Path(path).read_bytes(), seconds=time.perf_counter() - start)


def translation_unit(source: KernelSource) -> str:
    """The text as it goes to the compiler: unchanged but for `extern __shared__`, then what makes it loadable."""
    text = _DYNAMIC.sub(r"\1* const \2 = reinterpret_cast<\1*>(tilewright_host::dynamic_shared)", source.code)
    exports = "".join(f"TILEWRIGHT_EXPORT({name}, {size or 1})\n" for size, name in _KERNEL.findall(source.code))
    return f'#line 1 "{source.name}.cu"\n{text}\n{exports}'


def system_text(path: Path) -> str:
    """What a file of the system says; nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


@cache
def cpu_facts() -> tuple[str, str]:
    """Model of the processor, and the features that -march=native depends on."""
    facts: dict[str, str] = {}
    for line in system_text(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    model = facts.get("model name") or f"{os.uname().machine} {facts.get('CPU part', '')}".strip()
    return model, facts.get("flags") or facts.get("Features", "")


def _compiler() -> str:
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return path
    raise DeviceError("the host device needs a C++ compiler and found none: install one, such as `apt install g++`")


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip()


@cache
def compiler_version(compiler: str) -> str:
    """The first line that a compiler says of itself."""
    return (_output(compiler, "--version").splitlines() or [compiler])[0]


@cache
def _headers_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(_HEADERS.glob("*.h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
