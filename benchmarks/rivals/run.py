"""Time float products on tensor cores beside two rivals: fused Triton kernels, and one long cuBLAS product.

    python benchmarks/rivals/run.py
    python benchmarks/rivals/run.py --sizes 4096 8192 --accuracy normwise --json rivals.json

The contenders at each size and accuracy are SGEMM, our kernel, the long product of halves (fp16x3) or bfloat16s
(bf16x6), and the Triton kernel. Ours and the long product run whole, with all that they need, and alone, as the product
of terms that were made beforehand; the Triton kernel runs alone. All take turns in the same rounds, in shuffled order.
Products alone run on one set of operands, whole ones on operands that rotate past the cache. A rival that cannot run
is a printed line. Needs CuPy; torch and Triton for the Triton kernels.
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
"""Our variants by grade. The fastest one is ours, chosen once for whole products and once for products alone."""
SGEMM, OURS, LONG, TRITON, AGAIN = "SGEMM", "ours", "long product", "Triton", "ours again"
"""Names of contenders."""
ALONE = ", alone"
"""End of the name of a contender that runs only the product."""
METHOD = (
    "Normal data; contenders interleaved in shuffled order in one process; times are medians, ratios the median over "
    "the rounds of the time over that of ours, whole over whole and alone over alone, with a 95% interval; products "
    "under 500 us from one CUDA graph; whole: operands in float that rotate over more than 2.5 times the last-level "
    "cache, splitting and all else included; alone: one set of terms that were made beforehand; ours is the fastest of "
    "a list of variants, whole and alone each for itself; errors are those on the first 256 rows of the same data"
)
CHECKED_ROWS = 256
Contest = dict[str, tuple[Launch, str]]
"""Contenders by name: a launch, and the config as text, empty for a rival."""


class Data:
    """A and B of normal random numbers, and C, at one size."""

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
        """Elementwise and normwise error of a contender, in units of u. Raises the errors of the launch."""
        self.c[...] = np.nan
        launch(*self.operands, 1.0, 0.0)
        device.synchronize()
        return self.exact.errors(self.c[:CHECKED_ROWS])


def alone(run: Callable[[], None]) -> Launch:
    """A launch that runs on operands of its own."""
    return lambda a, b, c, alpha, beta: run()


def product_of(kernel: Kernel, data: Data) -> Callable[[], None]:
    """A function that runs the last launch of a kernel, on the results of the launches before it."""
    a, b, c = data.operands
    kernel.launch(a, b, c)
    program = kernel.laid(a.ld, b.ld, c.ld).program  # type: ignore[attr-defined]
    addresses = program.addresses(kernel.device.stream(), False) if program.addresses else ()
    values: tuple[Any, ...] = (a.pointer, b.pointer, c.pointer, 1.0, 0.0, *addresses)
    values += tuple(maps[values[number]] for number, maps in program.maps)
    launch, _, pick = program.steps[-1]
    arguments = pick((*values, *program.constants))

    def run() -> None:
        launch(kernel.device.stream(), *arguments)  # keeps the kernel alive, whose memory holds the terms

    return run


def contest_of(
    device: Device, size: int, grade: Grade, variants: Sequence[str], data: Data, timer: Timer, failed: list[str]
) -> Contest:
    """The contenders that run, with the fastest of our variants. The others are added to `failed` and printed."""
    problem, contest = Problem(size, size, size, accuracy=grade), Contest()

    def enter(name: str, build: Callable[[], Launch], config: str = "") -> None:
        try:
            launch = build()
            data.errors(device, launch)  # fails here if it cannot run
            contest[name] = launch, config
        except Exception as error:  # of any library: the others run on
            failed.append(f"{name} at {size}, {grade}: {type(error).__name__}: {error}".splitlines()[0])
            print(failed[-1], flush=True)

    def triton() -> Launch:
        # torch and Triton take seconds to import, and may be missing.
        sys.path.append(str(Path(__file__).parent))
        from fused import fused

        return alone(fused(data.a, data.b, data.c, str(grade), device.stream))

    enter(SGEMM, lambda: device.vendor(problem))
    products: dict[str, Any] = {}

    def long_product() -> Launch:
        products["long"] = Concatenated(device, problem, grade)
        launch: Launch = products["long"].launch
        return launch

    def long_product_alone() -> Launch:
        products["long"].split(*data.operands[:2])
        return alone(lambda: products["long"].multiply(data.operands[2]))

    enter(LONG, long_product)
    if LONG in contest:
        enter(LONG + ALONE, long_product_alone)
    enter(TRITON + ALONE, triton)
    for text in variants:
        enter(f"{OURS} {text}", lambda text=text: prepare(device, problem, parse(text)).launch, text)
        if f"{OURS} {text}" in contest:
            build = lambda text=text: alone(product_of(prepare(device, problem, parse(text)), data))  # noqa: E731
            enter(f"{OURS}{ALONE} {text}", build, text)
    for name in (OURS, OURS + ALONE):
        best = fastest(timer, {key: contest.pop(key)[0] for key in list(contest) if key.startswith(f"{name} ")})
        if best:
            launch, key = best
            contest[name] = launch, key.removeprefix(f"{name} ")
    return contest


def fastest(timer: Timer, launches: dict[str, Launch]) -> tuple[Launch, str] | None:
    """The launch with the least median time of three batches, in turns, and its name. None for no launches."""
    prepared = {name: timer.ready(launch) for name, launch in launches.items()}
    times_us = {name: [] for name in launches}
    for _ in range(3):
        for name in launches:
            times_us[name].append(timer.sample_us(prepared[name]))
    name = min(times_us, key=lambda name: statistics.median(times_us[name]), default=None)
    return None if name is None else (launches[name], name)


def race(
    device: Device, size: int, grade: Grade, variants: Sequence[str], seconds: float, failed: list[str]
) -> list[dict[str, Any]]:
    """A row for each contender at one size."""
    problem, data = Problem(size, size, size, accuracy=grade), Data(device, size)
    timer = Timer(device, problem, plan=TimingPlan.side_by_side(device))
    contest = contest_of(device, size, grade, variants, data, timer, failed)
    launches = {name: launch for name, (launch, _) in contest.items()}
    if OURS in launches:
        launches[AGAIN] = launches[OURS]
        contest[AGAIN] = contest[OURS]
    samples, clock_mhz = timer.rounds(launches, 7, seconds=seconds)
    rows = []
    for name, (_, config) in contest.items():
        elementwise, normwise = errors_of(device, data, name, grade, launches)
        us, base = statistics.median(samples[name]), OURS + ALONE if name.endswith(ALONE) else OURS
        ratio, interval = paired(samples[name], samples[base]) if base in samples else (None, None)
        rows.append({
            "size": size, "accuracy": str(grade), "contender": name, "config": config or None, "us": us,
            "tflops": problem.flops / us / 1e6, "time_over_ours": ratio, "interval": interval,
            "error_elementwise": finite(elementwise), "error_normwise": finite(normwise),
            "rounds": len(samples[name]), "clock_mhz": clock_mhz,
        })  # fmt: skip
        beside_ours = "" if ratio is None else f", {ratio:.3f} x our time"
        accuracy = f"errors {elementwise:.2f}, {normwise:.3f} u" if np.isfinite(normwise) else "its scales are still on"
        speed = f"{us:9.1f} us {rows[-1]['tflops']:6.1f} TFLOP/s{beside_ours}"
        print(f"{size:>5} {grade:<11} {name:<19} {speed}; {accuracy} {config}".rstrip(), flush=True)
    return rows


def errors_of(device: Device, data: Data, name: str, grade: Grade, launches: dict[str, Launch]) -> tuple[float, float]:
    """Elementwise and normwise error of a contender. NaN for the long product of halves alone, which stays scaled."""
    if name == LONG + ALONE:
        if grade is Grade.NORMWISE:
            return np.nan, np.nan
        launches[LONG](*data.operands, 1.0, 0.0)  # writes the terms of this data again
    return data.errors(device, launches[name])


def versions(device: Device) -> dict[str, str]:
    """Versions of all software that times depend on."""
    installed = dict(versions_of(device.info, device.compiler)) | {"vendor": device.vendor_name}
    for name in ("torch", "triton", device.xp.__name__):
        try:
            installed[name] = getattr(__import__(name), "__version__", "") or metadata.version(name)
        except Exception as error:  # the library is missing or does not load
            installed[name] = f"none ({type(error).__name__})"
    return installed


def main() -> None:
    """Time the contenders at all sizes and accuracies, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--accuracy", nargs="+", choices=list(map(str, VARIANTS)), default=list(map(str, VARIANTS)))
    parser.add_argument("--config", nargs="+", default=[], help="our variants, in place of the list in this file")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of rounds for each size and accuracy (2)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, help="file to write, again after each size and accuracy")
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
                configs = [text for text in options.config if parse(text).accuracy is grade]
                variants = configs or ([] if options.config else VARIANTS[grade])
                try:
                    document["rows"] += race(device, size, grade, variants, options.seconds, document["failed"])
                except (TilewrightError, MemoryError) as error:
                    document["failed"].append(f"{size}, {accuracy}: {error}")
                    print(document["failed"][-1], flush=True)
                if options.json:
                    options.json.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
