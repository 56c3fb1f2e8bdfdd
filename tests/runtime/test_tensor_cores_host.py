"""Twins of the tensor cores' conversions and sums on the host device."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tilewright.codegen.source import KernelSource, LaunchConfig
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.host import HostDevice

SUM_TF32 = """
extern "C" __global__ void add_tf32(const unsigned* a, const unsigned* b, const float* start, float* out, int n)
{
    for (int i = 0; i < n; ++i) out[i] = tilewright_host::cut_off_sum_tf32(start[i], a + 8 * i, b + 8 * i);
}
"""
CONVERT = """
extern "C" __global__ void convert(const float* x, unsigned short* out, float* back, int n)
{
    for (int i = 0; i < n; ++i) {
        out[i] = tilewright_host::to_half(x[i]);
        out[n + i] = tilewright_host::to_bfloat(x[i]);
        back[i] = tilewright_host::from_half(out[i]);
        back[n + i] = tilewright_host::from_bfloat(out[n + i]);
    }
}
"""
SUM = """
extern "C" __global__ void add(const float* a, const float* b, const float* start, float* out, int n)
{
    for (int i = 0; i < n; ++i) {
        tilewright_host::Scaled x[16], y[16];
        for (int p = 0; p < 16; ++p) {
            x[p] = tilewright_host::scaled(a[16 * i + p]);
            y[p] = tilewright_host::scaled(b[16 * i + p]);
        }
        out[i] = tilewright_host::cut_off_sum(start[i], x, y);
    }
}
"""


def launched(name: str, code: str, codes: str, outputs: tuple[NDArray[Any], ...], *inputs: NDArray[Any]) -> None:
    device = HostDevice()
    source = KernelSource(name, code)
    launch = device.load(compile_cached(device.compiler, source), name)
    arrays = *inputs, *outputs
    bound = launch.bound(LaunchConfig((1, 1, 1), (1, 1, 1)), codes)
    bound(0, *(array.ctypes.data for array in arrays), len(inputs[-1]))


def test_conversions_round_to_nearest_even_in_every_range() -> None:
    rng = np.random.default_rng(1)
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    ties = (halves[:-1].astype(np.float64) + halves[1:]) / 2
    x = np.concatenate([
        rng.integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32), halves, ties.astype(np.float32),
        np.ldexp(rng.standard_normal(20_000), rng.integers(-30, 18, 20_000)).astype(np.float32),
    ])  # fmt: skip
    x = np.ascontiguousarray(x[np.isfinite(x)])
    out, back = np.empty(2 * len(x), np.uint16), np.empty(2 * len(x), np.float32)
    launched("convert", CONVERT, "QQQi", (out, back), x)
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float16)
    assert np.array_equal(out[: len(x)], wanted.view(np.uint16))
    assert np.array_equal(back[: len(x)], wanted.astype(np.float32))
    bits = x.view(np.uint32).astype(np.uint64)
    bfloats = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    assert np.array_equal(out[len(x) :], bfloats)
    assert np.array_equal(back[len(x) :], (bfloats.astype(np.uint32) << 16).view(np.float32))


def test_sums_are_cut_off_at_25_fraction_bits_then_at_23() -> None:
    def summed(start: float, *products: tuple[float, float]) -> float:
        a, b, out = np.zeros(16, np.float32), np.zeros(16, np.float32), np.empty(1, np.float32)
        for p, (x, y) in enumerate(products):
            a[p], b[p] = x, y
        # The kernel takes its count from the last input.
        launched("add", SUM, "QQQQi", (out,), a, b, np.array([start], np.float32))
        return float(out[0])

    tiny = 2.0**-13
    assert summed(1.0, (tiny, tiny * 0.5)) == 1.0  # 2^-27 is beyond the 25th bit
    assert summed(1.0, *[(tiny, tiny * 0.5)] * 16) == 1.0  # also when there are many
    assert summed(1.0, *[(tiny, tiny * 2)] * 4) == 1 + 2.0**-23  # 2^-25 is kept, and four of them are a bit of a float
    assert summed(1.0, *[(tiny, tiny * 2)] * 7) == 1 + 2.0**-23  # toward zero
    assert summed(-1.0, *[(-tiny, tiny * 2)] * 7) == -1 - 2.0**-23
    assert summed(0.0, (3.0, 5.0), (-2.0, 7.5)) == 0.0
    assert summed(0.0, (2.0**-24, 2.0**-24)) == 2.0**-48
    assert summed(2.0**-149) == 2.0**-149


def test_sums_of_tf32_take_the_upper_bits_and_overflow_to_infinity() -> None:
    def summed(start: float, *products: tuple[float, float]) -> float:
        a, b, out = np.zeros(8, np.float32), np.zeros(8, np.float32), np.empty(1, np.float32)
        for p, (x, y) in enumerate(products):
            a[p], b[p] = x, y
        launched("add_tf32", SUM_TF32, "QQQQi", (out,), a, b, np.array([start], np.float32))
        return float(out[0])

    assert summed(0.0, (1 + 2.0**-10, 1.0)) == 1 + 2.0**-10
    assert summed(0.0, (1 + 2.0**-11, 1.0)) == 1.0  # 10 fraction bits are kept
    assert summed(0.0, (1.0, -(2 - 2.0**-23))) == -(2 - 2.0**-10)  # toward zero
    assert summed(1.0, (2.0**-13, 2.0**-14)) == 1.0
    assert summed(1.0, *[(2.0**-13, 2.0**-12)] * 7) == 1 + 2.0**-23
    assert summed(0.0, (2.0**-130, 2.0**100)) == 2.0**-30  # subnormal numbers count
    assert summed(0.0, (2.0**-137, 2.0**100)) == 0.0  # but for their low bits
    assert summed(0.0, (2.0**100, 2.0**100)) == np.inf
    assert summed(-np.inf, (1.0, 1.0)) == -np.inf
    assert summed(0.0, (2.0**100, 2.0**100), (-(2.0**100), 2.0**100)) == 0.0  # exact before it is rounded
    for x, y in ((np.inf, 0.0), (np.nan, 1.0)):
        assert np.isnan(summed(0.0, (x, y)))
    assert np.isnan(summed(np.inf, (-np.inf, 1.0)))
