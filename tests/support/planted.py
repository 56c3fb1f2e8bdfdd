"""Faults planted in the text of big families, and the check that must catch each: on the host, under sanitizers.

Run as a program, this file is the child process that has the sanitizers loaded; it forks once for each kernel, so
that a crash or an endless loop ends only that one.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from products import QuickDevice, exact, integers, run, scaled_integers, with_infinity
from quick import QuickCompiler, numbered, rendered, replaced, together
from tilewright.codegen.config import Config
from tilewright.codegen.errors import DeviceError, LaunchError
from tilewright.codegen.families import parse
from tilewright.codegen.fit import Fit
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import Grade, Problem
from tilewright.codegen.source import KernelSource
from tilewright.runtime.device import host_compiler
from tilewright.runtime.device.host import host_info
from tilewright.runtime.device.protocol import Binary
from tilewright.runtime.product.kernel import Kernel

RIGHT, WRONG, REFUSED, BROKEN, SANITIZER = 0, 3, 4, 5, 86
"""How a check ends: exit codes of its process. BROKEN means the check itself, and counts as a failed test."""

CPU_LIMIT_S = 20.0
"""After which a kernel counts as endless; others take a fifth on a slow machine."""

COMPILER = QuickCompiler(sanitize=True)
FOR_TERMS = QuickCompiler(sanitize=True, quick_headers=True)
"""For kernels that run longer than it takes to compile them."""
TOGETHER = 10
"""Kernels that are compiled at once. The shared memory of all is filled before every block of one."""

PARTS = 2
"""Tests of many kernels are so many: each has every other one of them and ends soon, also on a busy machine."""

Shape = tuple[int, int, int]


def sanitizer_library() -> str:
    """Libraries for LD_PRELOAD in a process that loads sanitized kernels. Raises DeviceError if one is missing."""
    compiler = host_compiler.cxx()
    clang = "clang" in host_compiler.compiler_version(compiler)
    name = f"libclang_rt.asan-{os.uname().machine}.so" if clang else "libasan.so"
    path = host_compiler.compiler_output(*compiler, f"-print-file-name={name}")
    # Some systems keep a linker script under that name; it holds the library's path.
    if os.path.isabs(path) and Path(path).read_bytes()[:4] != b"\x7fELF":
        path = next(iter(re.findall(r"/\S+\.so[.\d]*", Path(path).read_text())), "")
    if not os.path.isabs(path):
        raise DeviceError(f"{compiler[0]} has no address sanitizer: install {name}, such as `apt install g++`")
    return path


SHAPES: tuple[Shape, ...] = ((66, 35, 43), (64, 32, 32), (1, 1, 1))
"""Ragged edges with several tiles of k, whole tiles, and one element or vector."""


@dataclass(frozen=True, slots=True)
class Planted:
    """An instance of a kernel, and a replacement in its text that makes it wrong; none where `old` is empty. It runs
    with each of the shapes, rounded up to whole vectors."""

    name: str
    fit: Fit
    old: str = ""
    new: str = ""
    dtype: str = "double"
    trans: str = "nn"
    shapes: tuple[Shape, ...] = SHAPES
    before: tuple[str, str] = ("", "")
    """A replacement that leaves the kernel right, made first; none where its text is empty."""
    sm_count: int = 1
    """SMs of the device, which stream-K asks for."""
    special: bool = True
    """Whether a kernel of terms is given infinities and NaN too."""
    cpu_limit_s: float = CPU_LIMIT_S
    """After which it counts as endless; less where even a slow machine is done with such kernels in a fraction."""

    def source(self) -> KernelSource:
        """The text with the fault. Fails where it has no place for it."""
        source = rendered(_problem(self.fit.config, self.dtype, self.trans), self.fit)
        for old, new in (self.before, (self.old, self.new)):
            source = replaced(source, old, new) if old else source
        return source


@dataclass(frozen=True, slots=True)
class Fault:
    """A replacement in the text of a family's kernels that makes them wrong; none where `old` is empty."""

    name: str
    old: str
    new: str
    config: str = ""
    """Text of the config, without the name of the family; the first that is found right unfaulted where it is empty."""
    trans: str = "nn"
    wide: bool = False
    """Whether it is planted in the instance for aligned operands."""
    only: str = ""
    """The type in which it makes a difference, where that is not so in all of the family."""
    shapes: tuple[Shape, ...] = ()
    """The shapes that show it, where they are not those of the family's other faults."""
    before: tuple[str, str] = ("", "")
    """A replacement that leaves the kernel right, made first."""
    special: bool = True
    """Whether a kernel of terms is given infinities and NaN too."""


def outcomes(planted: Sequence[Planted], folder: Path) -> dict[str, int]:
    """Exit code of each kernel's check, negative for a signal."""
    terms = any(each.fit.config.accuracy is not Grade.IEEE for each in planted)
    paths = built([each.source() for each in planted], folder, FOR_TERMS if terms else COMPILER)
    jobs = [
        (
            each.name, each.cpu_limit_s, str(each.fit.config), (each.fit.edge, *_widths(each.fit)), each.dtype,
            each.trans, each.shapes, each.sm_count, each.special, number, path,
        )
        for number, (each, path) in enumerate(zip(planted, paths, strict=True))
    ]  # fmt: skip
    return judged(Path(__file__), jobs)


def assert_caught(planted: Sequence[Planted], folder: Path) -> None:
    """Fails unless exactly those kernels are right whose name says that they are unfaulted."""
    found = outcomes(planted, folder)
    right = {name for name, outcome in found.items() if outcome == RIGHT}
    assert right == {name for name in found if name.startswith("unfaulted")}, found
    assert BROKEN not in found.values(), found


def built(sources: Sequence[KernelSource], folder: Path, compiler: QuickCompiler) -> list[str]:
    """Where each kernel's binary is, under its name with its place here behind it. Several share one."""
    paths = []
    for begin in range(0, len(sources), TOGETHER):
        place = folder / str(begin)
        place.mkdir()
        some = [numbered(source, begin + each) for each, source in enumerate(sources[begin : begin + TOGETHER])]
        compiler.build(together(some), str(place))
        paths += [str(place / "kernel.so")] * len(some)
    return paths


def judged(program: Path, jobs: Sequence[Sequence[object]]) -> dict[str, int]:
    """The verdict of `judge` on a program that has the sanitizers loaded."""
    assert len({name for name, *_ in jobs}) == len(jobs)
    support = str(Path(__file__).parent)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (support, os.environ.get("PYTHONPATH")))),
        "LD_PRELOAD": sanitizer_library(),
        "ASAN_OPTIONS": f"detect_leaks=0:symbolize=0:exitcode={SANITIZER}",
        "UBSAN_OPTIONS": f"symbolize=0:exitcode={SANITIZER}",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, program],
        input=json.dumps(jobs), env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, int] = json.loads(done.stdout)
    return found


# ---- In the child ----------------------------------------------------------------------------------------------


def judge(check: Callable[..., int], jobs: Iterable[Sequence[Any]]) -> None:
    """Print what `check` returns for each job, or how its process ended. A job is a name, the seconds of the processor
    after which it is endless, and what `check` is given."""
    found = {}
    for name, cpu_limit_s, *arguments in jobs:
        child = os.fork()
        if child == 0:
            # The signal's own action ends the process, inside an endless loop too.
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_VIRTUAL, cpu_limit_s)
            print(f"---- {name}", file=sys.stderr, flush=True)
            outcome = BROKEN
            try:
                outcome = check(*arguments)
            finally:
                sys.stderr.flush()
                os._exit(outcome)
        found[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    json.dump(found, sys.stdout)


def _problem(config: Config, dtype: str, trans: str) -> Problem:
    return Problem.parse("64x64x512", dtype, trans, config.accuracy)


def _widths(fit: Fit) -> tuple[int, int, int]:
    return fit.vec_a, fit.vec_b, fit.vec_c


@cache
def _source(fit: Fit, dtype: str, trans: str) -> KernelSource:
    return rendered(_problem(fit.config, dtype, trans), fit)


def _fit(text: str, edge: str, *widths: int) -> Fit:
    return Fit(parse(text), Edge(edge), *widths)


@cache
def _device(alignment: int, sm_count: int) -> QuickDevice:
    """Kept to the end of the process: to unload a kernel under sanitizers takes longer than to run it."""
    return QuickDevice(sanitize=True, alignment=alignment, sm_count=sm_count)


def _check(
    text: str, instance: Sequence[Any], dtype: str, trans: str, shapes: Sequence[Shape], sm_count: int, special: bool,
    number: int, path: str,
) -> int:  # fmt: skip
    fit = _fit(text, *instance)
    config = fit.config
    size = Problem.parse("1", dtype).dtype.size_bytes
    # Scalar kernels get memory aligned to one element, so that every matrix ends where the guard page begins.
    step = 1 if max(fit.alignment) == 1 else 4
    device = _device(size if step == 1 else 16, sm_count)
    source = numbered(_source(fit, dtype, trans), number)
    binary = Binary(Path(path).read_bytes())
    for sizes in shapes:
        m, n, k = (-(-size // step) * step for size in sizes)
        problem = Problem.parse(f"{m}x{n}x{k}", dtype, trans, config.accuracy)
        kernel = Kernel(device, problem, fit, source, binary)
        coarse = config.accuracy is not Grade.IEEE
        if coarse:
            try:
                right = _terms_are_right(device, kernel, step) and (
                    not special or _special_values_are_right(device, kernel)
                )
            except (AssertionError, LaunchError) as error:
                print(f"{problem}: {error}", file=sys.stderr)
                right = False
            if not right:
                return WRONG
        cases = [*product(((1.0, 0.0), (2.0, 3.0), (0.0, 2.0), (0.0, 0.0)), (0, step))]
        for (alpha, beta), extra in cases[::3] if coarse else cases:  # terms take long under sanitizers
            a, b, c = integers(problem, 1)
            if alpha == 0:
                a[:], b[:] = np.nan, np.nan
            try:
                got = run(device, kernel, a, b, c, alpha, beta, extra)
            except LaunchError as error:
                print(f"{problem}: {error}", file=sys.stderr)
                return REFUSED
            except AssertionError as error:
                print(f"{problem}: {error}", file=sys.stderr)
                return WRONG
            if alpha == 0:
                a[:], b[:] = 0, 0
            if not np.array_equal(got, exact(problem, a, b, c, alpha, beta)):
                print(f"{problem}: C is wrong", file=sys.stderr)
                return WRONG
    return RIGHT


def _terms_are_right(device: QuickDevice, kernel: Kernel, step: int) -> bool:
    """Whether every term and power of two counts. Rows stay whole vectors of `step` elements apart: to others another
    kernel is put, without the fault."""
    problem = kernel.problem
    for which, (alpha, beta) in enumerate(((1.0, 0.0), (-2.0, 0.5), (1.0, 1.0))):
        a, b, c, wide = scaled_integers(problem, which)
        got = run(device, kernel, a, b, c, alpha, beta, which * step)
        if not np.array_equal(got, (alpha * wide + beta * c).astype(np.float32)):
            print(f"{problem}: C is wrong for whole numbers of more bits", file=sys.stderr)
            return False
    return True


def _special_values_are_right(device: QuickDevice, kernel: Kernel) -> bool:
    """Whether infinities and NaN come out where they belong."""
    a, b, wanted = with_infinity(kernel.problem)
    got = run(device, kernel, a, b, np.zeros_like(wanted, np.float32), 1.0, 0.0)
    return np.array_equal(got, wanted.astype(np.float32), equal_nan=True)


def _main() -> None:
    jobs = json.load(sys.stdin)
    # Every child would do this for itself.
    host_info()
    for _, _, text, instance, dtype, trans, *_ in jobs:
        _source(_fit(text, *instance), dtype, trans)
    judge(_check, jobs)


if __name__ == "__main__":
    _main()
