"""Check whether float products on tensor cores of an NVIDIA GPU keep their grade, and time them beside SGEMM.

    python benchmarks/split_terms.py
    python benchmarks/split_terms.py --family wgmma --sizes 1024 4096
    python benchmarks/split_terms.py --family tf32x3 --sizes 512 64x4096x4096

Variants of `mma`, `wgmma` and `tf32x3` are compiled in parallel and checked. Their errors are compared with SGEMM's on
kinds of data that are hard to multiply, and they run on infinities, NaN and a zero row. CUDA graphs time all launches
of a product together, and each launch by itself. Needs CuPy.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cupy as cp
import numpy as np
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.runtime.check.kinds import KINDS, Exact
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.protocol import Device, Operand
from tilewright.runtime.product.kernel import prepare

FIRST = (
    "wgmma:128x128x64",
    "mma:128x128x32",
    "wgmma:128x128x64,scheme=bf16x6,stages=2",
    "mma:128x128x32,scheme=bf16x6,promote=32",
    "tf32x3:64x64x32",
)
"""Variants that are checked with all transposes, and whose errors are printed."""
OTHERS = (
    "wgmma:128x128x64,raster=8", "wgmma:128x128x64,ordered",
    "wgmma:128x128x32,stages=6,ordered",
    "wgmma:128x192x32,stages=5,ordered", "wgmma:128x192x32,stages=5,ordered,raster=8",
    "wgmma:128x192x32,stages=5,raster=8",
    "wgmma:128x192x64,stages=2,ordered,raster=8", "wgmma:192x128x64,stages=2,raster=8",
    "wgmma:128x64x64,stages=4,ordered", "wgmma:128x64x64,stages=4", "wgmma:64x192x64", "wgmma:128x128x64,promote=32",
    "mma:128x128x64", "mma:128x64x32,warp=32x32,min_ctas=2",
    "wgmma:128x128x64,scheme=bf16x6,stages=2,ordered", "wgmma:128x128x32,scheme=bf16x6,stages=4,ordered,raster=8",
    "wgmma:128x192x32,scheme=bf16x6,stages=3,ordered,raster=8", "wgmma:128x64x64,scheme=bf16x6,stages=3",
    "mma:128x128x32,scheme=bf16x6,promote=32,stages=4,raster=8",
    "tf32x3:128x64x32,raster=8",
    "tf32x3:64x64x16,promote=16,stages=4",
    "tf32x3:64x64x32,slices=2,promote=16,stages=4",
    "tf32x3:128x64x16,warp=64x32,promote=16,stages=4,raster=8",
    "tf32x3:128x128x16,warp=64x32,promote=16,stages=4,raster=8",
    "tf32x3:128x128x16,warp=64x32,promote=16,stages=4,fragments=single,raster=8",
    "tf32x3:128x128x16,warp=64x32,promote=32,stages=4,raster=8",
    "tf32x3:128x64x32,warp=64x32,stages=4,raster=8",
    "tf32x3:32x64x64,slices=4,promote=16,stages=5",
    "tf32x3:32x64x64,slices=4,promote=16,stages=5,split_k=4",
    "tf32x3:64x64x32,stages=4,split_k=8",
)  # fmt: skip
"""Further variants, which are checked without transposes."""
CHECKED = (128, 128, 512), (257, 130, 999), (1, 1, 300), (1000, 33, 4096), (4097, 515, 1031)
TRANS = "nn", "nt", "tn", "tt"
IN_ORDER = "tiled:16"
"""A kernel that adds along k in order in float, whose errors are printed beside the others."""
REPEATS = 100


def problem_of(config: Config, shape: tuple[int, int, int], trans: str = "nn") -> Problem:
    """The product that checks and times a config, of the grade that the config keeps."""
    return Problem.parse("x".join(map(str, shape)), "float", trans, config.accuracy)


def operand(array: Any) -> Operand:
    """The operand of a CuPy matrix."""
    return Operand(array.data.ptr, *array.shape, array.shape[1], False, array)


def compile_all(device: Device, first: Sequence[str], others: Sequence[str]) -> None:
    """Compile all variants into the cache."""
    variants = [(parse(text), "nn") for text in (*first, *others)]
    variants += [(parse(text), trans) for text in first for trans in TRANS[1:]]

    def compile_variant(config: Config, trans: str) -> None:
        source = render(problem_of(config, (1024, 1024, 1024), trans), config, device.info)
        compile_cached(device.compiler, source)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda each: compile_variant(*each), variants))


def check(device: Device, first: Sequence[str], others: Sequence[str]) -> None:
    """Check that results of whole numbers are exact, and those of random numbers within the bound of the grade."""
    wrong = 0
    for text in (*first, *others):
        for trans in TRANS if text in first else ("nn",):
            for shape in CHECKED:
                config = parse(text)
                problem = problem_of(config, shape, trans)
                if not serves(config, problem, device.info):
                    continue
                reason = Verifier(device, problem).check(prepare(device, problem, config).launch).reason
                if reason:
                    wrong += 1
                    print(f"WRONG {text} {problem}: {reason}")
    print(f"{wrong} wrong")


def compare(device: Device, first: Sequence[str]) -> None:
    """Print errors on each kind of data, beside those of SGEMM and of a kernel that adds along k in order."""
    texts = IN_ORDER, *first
    names = "SGEMM", *texts
    print("errors in units of u |a||b|, elementwise and normwise")
    for k in (512, 4096, 16384):
        for kind, make in KINDS.items():
            a, b = map(cp.asarray, make(np.random.default_rng(1), 256, 256, k))
            exact = Exact(a, b)
            errors = [exact.errors(a @ b)]
            for text in texts:
                c, config = cp.full((256, 256), cp.nan, cp.float32), parse(text)
                prepare(device, problem_of(config, (256, 256, k)), config).launch(operand(a), operand(b), operand(c))
                errors.append(exact.errors(c))
            cells = "; ".join(f"{name.partition(',')[0]} {e:.2f} {w:.3f}" for name, (e, w) in zip(names, errors))
            print(f"{kind:<11} {k:>6}: {cells}")


def specials(device: Device, first: Sequence[str]) -> None:
    """Check results of infinities, NaN, a zero row and large numbers, and that all launches give the same bits."""
    for text in first:
        config = parse(text)
        a, b = cp.random.standard_normal((300, 700), cp.float32), cp.random.standard_normal((700, 260), cp.float32)
        a[7, 3], b[5, 9], a[200], a[201, 4] = cp.inf, cp.nan, 0, 3e38
        c, kernel = cp.empty((300, 260), cp.float32), prepare(device, problem_of(config, (300, 260, 700)), config)
        operands = operand(a), operand(b), operand(c)
        kernel.launch(*operands)
        result, expected = c.copy(), a @ b
        alike = all(bool((test(expected) == test(c)).all()) for test in (cp.isnan, cp.isposinf, cp.isneginf))
        same = 0
        for _ in range(REPEATS):
            kernel.launch(*operands)
            same += int((c.view(cp.uint32) == result.view(cp.uint32)).all())
        print(f"{text}: special values {'right' if alike and bool((c[200, :9] == 0).all()) else 'WRONG'}, same {same}")


def replayed_us(device: Device, run: Callable[[], None], flops: float) -> float:
    """Median microseconds of one `run` in a graph that repeats it."""
    count = max(2, min(40, int(1e12 / flops)))
    replay = device.capture(lambda: [run() for _ in range(count)], run)
    replay()
    times_us = []
    for _ in range(5):
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times_us.append(cp.cuda.get_elapsed_time(begin, end) / count * 1e3)
    return statistics.median(times_us)


def speed(device: Device, size: str, texts: Sequence[str]) -> None:
    """Time SGEMM and all variants that serve a size."""
    problem = Problem.parse(size)
    m, n, k = shape = problem.m, problem.n, problem.k
    a, b = cp.random.standard_normal((m, k), cp.float32), cp.random.standard_normal((k, n), cp.float32)
    c, flops = cp.empty((m, n), cp.float32), float(problem.flops)
    operands = operand(a), operand(b), operand(c)
    vendor, begin = device.vendor(problem), time.monotonic()
    while time.monotonic() - begin < 0.4:
        vendor(*operands, 1.0, 0.0)
        cp.cuda.get_current_stream().synchronize()
    sgemm_us = replayed_us(device, lambda: vendor(*operands, 1.0, 0.0), flops)
    print(f"{problem.shape}: SGEMM {sgemm_us:.1f} us, {flops / sgemm_us / 1e6:.1f} TFLOP/s")
    for text in texts:
        config = parse(text)
        if not serves(config, problem_of(config, shape), device.info):
            continue
        kernel = prepare(device, problem_of(config, shape), config)
        kernel.launch(*operands)
        kernel.prepare_graphs(1)
        whole_us = replayed_us(device, lambda kernel=kernel: kernel.launch(*operands), flops)
        program = kernel.laid(k, n, n).program
        addresses = program.addresses(device.stream(), False) if program.addresses else ()
        step_times_us = list[float]()
        values = (a.data.ptr, b.data.ptr, c.data.ptr, 1.0, 0.0, *addresses, *program.constants)
        for launch, _, pick in program.steps:
            arguments = pick(values)
            run = lambda launch=launch, arguments=arguments: launch(device.stream(), *arguments)  # noqa: E731
            step_times_us.append(replayed_us(device, run, flops))
        names = ("split", "product")[-len(step_times_us) :]
        parts = ", ".join(f"{name} {us:.1f}" for name, us in zip(names, step_times_us)) + " us"
        rate = f"{flops / whole_us / 1e6:6.1f} TFLOP/s {sgemm_us / whole_us:5.2f} x SGEMM"
        print(f"  {text:<58} {whole_us:8.1f} us {rate}; {parts}")


def main() -> None:
    """Compile, check and time the variants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["1024", "2048", "4096", "8192"], help="N or MxNxK")
    parser.add_argument("--family", choices=("mma", "wgmma", "tf32x3"), help="measure variants of this family alone")
    options = parser.parse_args()
    first, others = ([text for text in texts if text.startswith(options.family or "")] for texts in (FIRST, OTHERS))
    device = open_device(choose("cuda"))
    with device.entered():
        for name, step in (
            ("compile", lambda: compile_all(device, first, others)),
            ("check", lambda: check(device, first, others)),
            ("errors", lambda: compare(device, first)),
            ("special values", lambda: specials(device, first)),
            ("speed", lambda: [speed(device, size, (*first, *others)) for size in options.sizes]),
        ):
            begin = time.monotonic()
            step()
            print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
