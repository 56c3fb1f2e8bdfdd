"""Float products on tensor cores beside what else can be built: fused Triton kernels, and one long cuBLAS product.

    python benchmarks/rivals/run.py
    python benchmarks/rivals/run.py --sizes 4096 8192 --accuracy normwise --json rivals.json

For each size and accuracy: SGEMM; ours and the long product of halves (fp16x3) or bfloat16s (bf16x6), each with all
that it needs and as the product alone, of terms that were made beforehand; and the Triton kernel alone. All meet in
the same rounds, in shuffled order. Products alone run on one set of operands, whole ones on operands that rotate past
the cache. A rival that cannot run is a printed line. Needs CuPy; torch and Triton for the Triton kernels.
"""

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from tilewright.codegen.errors import TilewrightError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Grade, Problem
from tilewright.runtime.check.kinds import Exact
from tilewright.runtime.check.timing import Timer, TimingPlan
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.protocol import Device, Launch, Operand
from tilewright.runtime.product.kernel import Kernel, prepare
from tilewright.runtime.store.codec import packed
from tilewright.runtime.store.versions import versions_of
from tilewright.tuner.bench.concatenated import Concatenated
from tilewright.tuner.bench.rows import finite
from tilewright.tuner.measure.ratios import paired

VARIANTS = {
    Grade.NORMWISE: (
        "wgmma:128x128x64", "wgmma:128x128x64,raster=8", "wgmma:128x128x64,ordered",
        "wgmma:128x192x32,stages=5,ordered,raster=8", "wgmma:192x128x64,stages=2,raster=8",
        "wgmma:128x64x64,stages=4",
    ),
    Grade.ELEMENTWISE: (
        "wgmma:128x128x64,scheme=bf16x6,stages=2", "wgmma:128x128x32,scheme=bf16x6,stages=4,ordered",
        "wgmma:128x128x32,scheme=bf16x6,stages=4,raster=8",
        "wgmma:192x128x32,scheme=bf16x6,raster=8",
        "wgmma:128x192x32,scheme=bf16x6,stages=3,ordered,raster=8",
        "wgmma:128x64x64,scheme=bf16x6,stages=3",
    ),
}  # fmt: skip
"""The variants of which ours is the fastest, whole and alone each for itself."""
SGEMM, OURS, LONG, TRITON, AGAIN = "SGEMM", "ours", "long product", "Triton", "ours again"
ALONE = ", alone"
METHOD = (
    "Normal data; contenders interleaved in shuffled order in one process; times are medians, ratios the median over "
    "the rounds of the time over that of ours, whole over whole and alone over alone, with a 95% interval; products "
    "under 500 us from one CUDA graph; whole: operands in float that rotate over more than 2.5 times the last-level "
    "cache, splitting and all else included; alone: one set of terms that were made beforehand; ours is the fastest of "
    "a list of variants, whole and alone each for itself; errors are those on the first 256 rows of the same data"
)
CHECKED_ROWS = 256
Contest = dict[str, tuple[Launch, str]]
"""Contenders: a launch, and the variant in words."""


class Data:
    """A and B of normal numbers, and C, at one size."""

    def __init__(self, device: Device, size: int) -> None:
        rng, xp = np.random.default_rng(1), device.xp
        self.a, self.b = (xp.asarray(rng.standard_normal((size, size), np.float32)) for _ in range(2))
        self.c = xp.full((size, size), np.nan, "float32")
        self.operands = tuple(self._operand(each) for each in (self.a, self.b, self.c))
        self.exact = Exact(self.a[:CHECKED_ROWS], self.b)

    @staticmethod
    def _operand(array: Any) -> Operand:
        pointer = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
        return Operand(pointer, *array.shape, array.shape[1], False, array)

    def errors(self, device: Device, launch: Launch) -> tuple[float, float]:
        """Errors of a contender, elementwise and normwise in units of u. Raises what launching does."""
        self.c[...] = np.nan
        launch(*self.operands, 1.0, 0.0)
        device.synchronize()
        return self.exact.errors(self.c[:CHECKED_ROWS])


def alone(run: Callable[[], None]) -> Launch:
    """A launch on operands of its own."""
    return lambda a, b, c, alpha, beta: run()


def product_of(kernel: Kernel, data: Data) -> Callable[[], None]:
    """The last launch of a kernel, with what those before it made of the data."""
    a, b, c = data.operands
    kernel.launch(a, b, c)
    program = kernel.laid(a.ld, b.ld, c.ld).program  # type: ignore[attr-defined]
    own = program.addresses(kernel.device.stream(), False) if program.addresses else ()
    values: tuple[Any, ...] = (a.pointer, b.pointer, c.pointer, 1.0, 0.0, *own)
    values += tuple(maps[values[number]] for number, maps in program.maps)
    launch, _, pick = program.steps[-1]
    arguments = pick((*values, *program.constants))

    def run() -> None:
        launch(kernel.device.stream(), *arguments)  # the terms lie in the kernel's memory: it must not go

    return run


def contenders(
    device: Device, size: int, grade: Grade, variants: Sequence[str], data: Data, timer: Timer, failed: list[str]
) -> Contest:
    """The contenders that run, the fastest of our variants among them; others are added to `failed` and printed."""
    problem, found = Problem(size, size, size, accuracy=grade), Contest()

    def enter(name: str, build: Callable[[], Launch], words: str = "") -> None:
        try:
            launch = build()
            data.errors(device, launch)  # it can run
            found[name] = launch, words
        except Exception as error:  # of any library: each rival fails for itself
            failed.append(f"{name} at {size}, {grade}: {type(error).__name__}: {error}".splitlines()[0])
            print(failed[-1], flush=True)

    def fused() -> Launch:
        # torch and Triton take seconds to import, and may be missing.
        sys.path.append(str(Path(__file__).parent))
        from fused import fused

        return alone(fused(data.a, data.b, data.c, str(grade), device.stream))

    enter(SGEMM, lambda: device.vendor(problem))
    held: dict[str, Any] = {}

    def long() -> Launch:
        held["long"] = Concatenated(device, problem, grade)
        launch: Launch = held["long"].launch
        return launch

    def long_alone() -> Launch:
        held["long"].split(*data.operands[:2])
        return alone(lambda: held["long"].multiply(data.operands[2]))

    enter(LONG, long)
    if LONG in found:
        enter(LONG + ALONE, long_alone)
    enter(TRITON + ALONE, fused)
    for text in variants:
        enter(f"{OURS} {text}", lambda text=text: prepare(device, problem, parse(text)).launch, text)
        if f"{OURS} {text}" in found:
            build = lambda text=text: alone(product_of(prepare(device, problem, parse(text)), data))  # noqa: E731
            enter(f"{OURS}{ALONE} {text}", build, text)
    for name in (OURS, OURS + ALONE):
        best = fastest(timer, {key: found.pop(key)[0] for key in list(found) if key.startswith(f"{name} ")})
        if best:
            launch, key = best
            found[name] = launch, key.removeprefix(f"{name} ")
    return found


def fastest(timer: Timer, launches: dict[str, Launch]) -> tuple[Launch, str] | None:
    """The one with the least time of a few batches, in turns; None of none."""
    timed = {name: timer.ready(launch) for name, launch in launches.items()}
    times = {name: [] for name in launches}
    for _ in range(3):
        for name in launches:
            times[name].append(timer.sample_us(timed[name]))
    name = min(times, key=lambda name: statistics.median(times[name]), default=None)
    return None if name is None else (launches[name], name)


def race(
    device: Device, size: int, grade: Grade, variants: Sequence[str], seconds: float, failed: list[str]
) -> list[dict[str, Any]]:
    """A row for each contender at one size."""
    problem, data = Problem(size, size, size, accuracy=grade), Data(device, size)
    timer = Timer(device, problem, plan=TimingPlan.side_by_side(device))
    found = contenders(device, size, grade, variants, data, timer, failed)
    lined_up = {name: launch for name, (launch, _) in found.items()}
    if OURS in lined_up:
        lined_up[AGAIN] = lined_up[OURS]
        found[AGAIN] = found[OURS]
    samples, clock_mhz = timer.rounds(lined_up, 7, seconds=seconds)
    rows = []
    for name, (_, words) in found.items():
        elementwise, normwise = errors_of(device, data, name, grade, lined_up)
        us, base = statistics.median(samples[name]), OURS + ALONE if name.endswith(ALONE) else OURS
        ratio, within = paired(samples[name], samples[base]) if base in samples else (None, None)
        rows.append({
            "size": size, "accuracy": str(grade), "contender": name, "config": words or None, "us": us,
            "tflops": problem.flops / us / 1e6, "time_over_ours": ratio, "interval": within,
            "error_elementwise": finite(elementwise), "error_normwise": finite(normwise),
            "rounds": len(samples[name]), "clock_mhz": clock_mhz,
        })  # fmt: skip
        over = "" if ratio is None else f", {ratio:.3f} x our time"
        off = f"errors {elementwise:.2f}, {normwise:.3f} u" if np.isfinite(normwise) else "its scales are still on"
        speed = f"{us:9.1f} us {rows[-1]['tflops']:6.1f} TFLOP/s{over}"
        print(f"{size:>5} {grade:<11} {name:<19} {speed}; {off} {words}".rstrip(), flush=True)
    return rows


def errors_of(device: Device, data: Data, name: str, grade: Grade, lined_up: dict[str, Launch]) -> tuple[float, float]:
    """Elementwise and normwise; NaN for the long product of halves alone, whose scales are still on."""
    if name == LONG + ALONE:
        if grade is Grade.NORMWISE:
            return np.nan, np.nan
        lined_up[LONG](*data.operands, 1.0, 0.0)  # the terms that it multiplies are of other data by now
    return data.errors(device, lined_up[name])


def versions(device: Device) -> dict[str, str]:
    """Versions of all that a time depends on."""
    known = dict(versions_of(device.info, device.compiler)) | {"vendor": device.vendor_name}
    for name in ("torch", "triton", device.xp.__name__):
        try:
            known[name] = getattr(__import__(name), "__version__", "") or metadata.version(name)
        except Exception as error:  # a library that is not there, or does not load
            known[name] = f"none ({type(error).__name__})"
    return known


def main() -> None:
    """All sizes and accuracies that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--accuracy", nargs="+", choices=list(map(str, VARIANTS)), default=list(map(str, VARIANTS)))
    parser.add_argument("--config", nargs="+", default=[], help="variants of ours, in place of the list in this file")
    parser.add_argument("--seconds", type=float, default=2.0, help="of rounds for each size and accuracy")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, help="write everything here, again after each size")
    options = parser.parse_args()
    device = open_device(choose(options.device))
    with device.entered():
        document: dict[str, Any] = {
            "device": device.info.name, "device_facts": packed(device.info, whole=False), "versions": versions(device),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "method": METHOD, "rows": [],
            "failed": [],
        }  # fmt: skip
        print(f"{document['device']}, {document['date']}: {document['versions']}", flush=True)
        for size in options.sizes:
            for accuracy in options.accuracy:
                grade = Grade(accuracy)
                given = [text for text in options.config if parse(text).accuracy is grade]
                variants = given or ([] if options.config else VARIANTS[grade])
                try:
                    document["rows"] += race(device, size, grade, variants, options.seconds, document["failed"])
                except (TilewrightError, MemoryError) as error:
                    document["failed"].append(f"{size}, {accuracy}: {error}")
                    print(document["failed"][-1], flush=True)
                if options.json:
                    options.json.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
