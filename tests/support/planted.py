"""Faults planted in the texts of kernels, and the check on the host, under sanitizers, that must catch each.

Run as a program, this file is the child process that has the sanitizers loaded. It forks once for each kernel, so that
a crash or an endless loop ends only one check.
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
"""Exit codes of the process of a check. BROKEN means that the check itself failed, which fails the test."""

CPU_LIMIT_S = 20.0
"""Seconds of the processor after which a kernel counts as endless. On a slow machine, others take a fifth of this."""

COMPILER = QuickCompiler(sanitize=True)
FOR_TERMS = QuickCompiler(sanitize=True, quick_headers=True)
"""Compiler for kernels that run longer than it takes to compile them."""
TOGETHER = 10
"""Number of kernels in one compiled text. Before each block of a kernel the shared memory of all is filled."""

PARTS = 2
"""Number of tests among which the checks of many kernels are divided, so that each ends soon on a busy machine too."""

Shape = tuple[int, int, int]


def sanitizer_library() -> str:
    """Libraries for LD_PRELOAD in a process that loads sanitized kernels. Raises DeviceError if one is missing."""
    compiler = host_compiler.cxx()
    clang = "clang" in host_compiler.compiler_version(compiler)
    name = f"libclang_rt.asan-{os.uname().machine}.so" if clang else "libasan.so"
    path = host_compiler.compiler_output(*compiler, f"-print-file-name={name}")
    # On some systems this file is a linker script that holds the path of the library.
    if os.path.isabs(path) and Path(path).read_bytes()[:4] != b"\x7fELF":
        path = next(iter(re.findall(r"/\S+\.so[.\d]*", Path(path).read_text())), "")
    if not os.path.isabs(path):
        raise DeviceError(f"{compiler[0]} has no address sanitizer: install {name}, such as `apt install g++`")
    return path


SHAPES: tuple[Shape, ...] = ((66, 35, 43), (64, 32, 32), (1, 1, 1))
"""Ragged edges with several tiles of k, whole tiles, and one element or vector."""


@dataclass(frozen=True, slots=True)
class Planted:
    """An instance of a kernel and a fault, which is a replacement in its text; there is none where `old` is empty. The
    kernel runs with each of the shapes, rounded up to whole vectors."""

    name: str
    fit: Fit
    old: str = ""
    new: str = ""
    dtype: str = "double"
    trans: str = "nn"
    shapes: tuple[Shape, ...] = SHAPES
    before: tuple[str, str] = ("", "")
    """A replacement that leaves the kernel right and is made first; none where the text is empty."""
    sm_count: int = 1
    """Number of SMs of the device, on which stream-K depends."""
    special: bool = True
    """Whether a kernel of split terms is also checked with infinities and NaN."""
    cpu_limit_s: float = CPU_LIMIT_S
    """Seconds of the processor after which the kernel counts as endless; less for kernels that take a fraction."""

    def source(self) -> KernelSource:
        """Source with the fault. Fails where the text does not hold what is to be replaced."""
        source = rendered(_problem(self.fit.config, self.dtype, self.trans), self.fit)
        for old, new in (self.before, (self.old, self.new)):
            source = replaced(source, old, new) if old else source
        return source


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: a replacement in the text of a family's kernels that makes them wrong; none where `old` is empty."""

    name: str
    old: str
    new: str
    config: str = ""
    """Text of the config, without the name of the family. Where it is empty, the first of `unfaulted` is meant."""
    trans: str = "nn"
    wide: bool = False
    """Whether the fault is planted in the instance for aligned operands."""
    only: str = ""
    """The only type in which the fault makes a difference; empty where it does in all types of the family."""
    shapes: tuple[Shape, ...] = ()
    """Shapes that show the fault; empty where those of the family's other faults do."""
    before: tuple[str, str] = ("", "")
    """A replacement that leaves the kernel right and is made first."""
    special: bool = True
    """Whether a kernel of split terms is also checked with infinities and NaN."""


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
    """Fail unless the right kernels are exactly those whose name says that they are unfaulted."""
    codes = outcomes(planted, folder)
    right = {name for name, outcome in codes.items() if outcome == RIGHT}
    assert right == {name for name in codes if name.startswith("unfaulted")}, codes
    assert BROKEN not in codes.values(), codes


def built(sources: Sequence[KernelSource], folder: Path, compiler: QuickCompiler) -> list[str]:
    """Path of the binary of each kernel. Several kernels share one; `numbered` gives each a name of its own."""
    paths = []
    for begin in range(0, len(sources), TOGETHER):
        place = folder / str(begin)
        place.mkdir()
        part = [numbered(source, begin + each) for each, source in enumerate(sources[begin : begin + TOGETHER])]
        compiler.build(together(part), str(place))
        paths += [str(place / "kernel.so")] * len(part)
    return paths


def judged(program: Path, jobs: Sequence[Sequence[object]]) -> dict[str, int]:
    """Exit codes by name that `program` prints, run in a process with the sanitizers loaded."""
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
    codes: dict[str, int] = json.loads(done.stdout)
    return codes


# ---- In the child ----------------------------------------------------------------------------------------------


def judge(check: Callable[..., int], jobs: Iterable[Sequence[Any]]) -> None:
    """Print the exit code of each job's process, which calls `check`. A job is a name, the seconds of the processor
    after which it counts as endless, and the arguments of `check`."""
    codes = {}
    for name, cpu_limit_s, *arguments in jobs:
        child = os.fork()
        if child == 0:
            # The default action of the signal ends the process, even in an endless loop.
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_VIRTUAL, cpu_limit_s)
            print(f"---- {name}", file=sys.stderr, flush=True)
            outcome = BROKEN
            try:
                outcome = check(*arguments)
            finally:
                sys.stderr.flush()
                os._exit(outcome)
        codes[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    json.dump(codes, sys.stdout)


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
    """A device that lives as long as the process: unloading a kernel under sanitizers takes longer than running it."""
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
        for (alpha, beta), extra in cases[::3] if coarse else cases:  # split terms take long under sanitizers
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
    """Whether every term and power of two counts. Strides of rows stay multiples of `step`: other strides would be
    served by another kernel, without the fault."""
    problem = kernel.problem
    for which, (alpha, beta) in enumerate(((1.0, 0.0), (-2.0, 0.5), (1.0, 1.0))):
        a, b, c, wide = scaled_integers(problem, which)
        got = run(device, kernel, a, b, c, alpha, beta, which * step)
        if not np.array_equal(got, (alpha * wide + beta * c).astype(np.float32)):
            print(f"{problem}: C is wrong for whole numbers of more bits", file=sys.stderr)
            return False
    return True


def _special_values_are_right(device: QuickDevice, kernel: Kernel) -> bool:
    """Whether infinities and NaN come out where IEEE arithmetic puts them."""
    a, b, expected = with_infinity(kernel.problem)
    got = run(device, kernel, a, b, np.zeros_like(expected, np.float32), 1.0, 0.0)
    return np.array_equal(got, expected.astype(np.float32), equal_nan=True)


def _main() -> None:
    jobs = json.load(sys.stdin)
    # Both calls fill caches, which otherwise each child would fill for itself.
    host_info()
    for _, _, text, instance, dtype, trans, *_ in jobs:
        _source(_fit(text, *instance), dtype, trans)
    judge(_check, jobs)


if __name__ == "__main__":
    _main()
