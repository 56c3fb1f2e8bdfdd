"""Measure what a call costs without the driver, which is replaced by one that returns at once, in C and in Python.

    python benchmarks/launcher.py

Needs a C compiler and CuPy, for its arrays, but no GPU. Functions that do nothing stand for CuPy's look-ups of the
current stream, its capture and the current device, so the times do not contain these.
"""

import ctypes
import platform
import subprocess
import tempfile
import timeit
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cupy
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.families import parse
from tilewright.codegen.legality import fitted
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import LaunchConfig
from tilewright.runtime.device import driver, launcher
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.host_compiler import cpu_facts
from tilewright.runtime.device.protocol import Binary, Launcher
from tilewright.runtime.product.arrays import kind_of
from tilewright.runtime.product.gemm import Gemm
from tilewright.runtime.product.kernel import Kernel
from tilewright.runtime.product.vendor import OwnKernel
from tilewright.runtime.store.lookup import LookupResult

BATCHES, CALLS = 7, 400
PRODUCTS = {
    "plain": ("512x512x512", "simt:32x64x32,lanes_m=4,slices=4,slice_barriers,l2_prefetch"),
    "split_k": (
        "35x700x2048",
        "simt:40x32x32,thread=5x8,slices=4,slice_barriers,stages=4,split_k=6,l2_prefetch",
    ),
    "stream_k": (
        "640x1280x2560", "simt:64x128x16,slices=2,interleave=2,stream_k=1,min_ctas=2",
    ),
    "tma": (
        "16x4096x4096", "simt:16x32x128,thread=4,lanes_m=4,slices=4,load=tma,stages=6,k_inner_a",
    ),
    "pack": (
        "2047x2047x2047",
        "simt:128x256x16,thread=16x8,lanes_m=4,order=rows,pack_a,pack_b,interleave=2,shared",
    ),
}  # fmt: skip
"""By kind of product: a shape, and the config that its record holds for an H200."""
EMPTY = "int cuLaunchKernelEx(const void *how, void *function, void **arguments, void **more) { return 0; }"


class Gpu(HostDevice):
    """A GPU of which only launches work, by a driver that does nothing."""

    current: Callable[[], int] = int
    capturing: Callable[[int], bool] = bool

    def __init__(self) -> None:
        super().__init__()
        self.info = replace(super().info, arch=ARCHES["sm_90a"], sm_count=132, selector="cuda:0")

    def load(self, binary: Binary, name: str) -> Any:
        return self

    def bound(self, launch: LaunchConfig, codes: str) -> Launcher:
        return driver.driver_launch(1, launch, codes, True, print, RuntimeError)

    def zero(self, *arguments: Any) -> None:
        pass

    def identity(self, stream: int, capturing: bool) -> tuple[int, int]:
        return 0, driver.stream_identity(stream)

    def tensor_map(self, *arguments: Any, **options: Any) -> bytes:
        return bytes(128)


def call_us(shape: str, text: str) -> float:
    """Microseconds of one call of a loaded kernel, with `out`."""
    problem, config, gpu = Problem.parse(shape, DType.FLOAT), parse(text), Gpu()
    own_kernel = OwnKernel(gpu, problem, LookupResult(config, "given"), lambda lookup: lookup)  # type: ignore[arg-type]
    fit = fitted(problem, config, gpu.info)
    own_kernel.compiled = Kernel(gpu, problem, fit, render(problem, config, gpu.info, fit), Binary(b""))
    gemm = Gemm(own_kernel, None, lambda: gemm)
    memory = cupy.cuda.UnownedMemory(1 << 40, 1 << 34, None, 0)  # no kernel reads it
    shapes = problem.stored_a, problem.stored_b, (problem.m, problem.n)
    a, b, c = (cupy.ndarray(s, "f4", cupy.cuda.MemoryPointer(memory, i << 31)) for i, s in enumerate(shapes))
    kind_of(a).stream = int  # type: ignore[method-assign, union-attr]
    names = {"call": gemm, "a": a, "b": b, "c": c}
    gemm(a, b, out=c)
    return min(timeit.repeat("call(a, b, out=c)", globals=names, number=CALLS, repeat=BATCHES)) / CALLS * 1e6


def main() -> None:
    """Print a row for each kind of product."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "empty.so")
        subprocess.run(["cc", "-x", "c", "-O2", "-shared", "-o", path, "-"], input=EMPTY, text=True, check=True)
        library = ctypes.CDLL(str(path))
    driver._driver = lambda: library  # type: ignore[assignment]
    print(f"{cpu_facts()[0]}, Python {platform.python_version()}, CuPy {cupy.__version__}, {launcher.described()}")
    modules = launcher.module, lambda: None
    for name, product in PRODUCTS.items():
        times = []
        for launcher.module in modules:
            times.append(call_us(*product))
        print(f"{name:<10}", *(f"{time:6.2f}" for time in times))


if __name__ == "__main__":
    main()
