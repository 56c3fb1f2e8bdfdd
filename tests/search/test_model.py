"""The models of a GPU and of the processor: how expected times depend on problems, configs and devices. The least time
of a product: three limits, measured rates and derived ones."""

from dataclasses import replace

import pytest
from search_spaces import H200, on
from stored import INFO
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.leaf import EdgePolicy, Mode
from tilewright.codegen.problem import Problem
from tilewright.runtime.check.roofline import floor_us, rates_of
from tilewright.runtime.device.detect import choose
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.tuner.choose.host import host_us
from tilewright.tuner.choose.model import Table

pytestmark = pytest.mark.fast

SIMT, DMMA = "simt:128x128x16,lanes_m=4", "dmma:128x64x16,warp=64x32,stages=4"
SKINNY = "skinny:1x4x8,lanes_k=4,warps=1x8,resident_k=4096"


def us(problem: Problem, config: Config, info: DeviceInfo) -> float:
    """Microseconds that the model of a GPU expects of a variant."""
    return float(Table([config], problem.dtype, info).modelled_us(problem)[0])


def test_a_kernel_without_shared_memory_has_a_time_where_the_system_reserves_none() -> None:
    assert us(Problem.parse("1000"), parse("naive:8x32"), on("sm_75")) > 1


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        (SIMT, "1024x2048x4096", "float"),
        (DMMA, "1024x2048x4096", "double"),
        (SKINNY, "1x8192x4096", "float"),
        ("tiled:16", "1024x2048x4096", "float"),
    ],
)
def test_more_work_and_slower_devices_take_longer(text: str, shape: str, dtype: str) -> None:
    config, problem = parse(text), Problem.parse(shape, dtype)
    base = us(problem, config, H200)
    m, n, k = problem.m, problem.n, problem.k
    for larger in (replace(problem, m=4 * m), replace(problem, n=4 * n), replace(problem, k=2 * k)):
        assert us(larger, config, H200) > base
    assert us(problem, config, replace(H200, clock_mhz=990.0)) > base
    assert us(problem, config, replace(H200, sm_count=66)) > base
    assert us(problem, config, replace(H200, bandwidth_gbs=48.0)) > base


@pytest.mark.parametrize(("text", "dtype"), [(SIMT, "float"), (DMMA, "double")])
def test_gains_and_costs_of_split_k(text: str, dtype: str) -> None:
    # `deep` has one tile of C, and `wide` four for each SM.
    deep, wide = Problem.parse("128x128x16384", dtype), Problem.parse("16896x512x4096", dtype)
    whole, split = parse(text), parse(text + ",split_k=16")
    assert us(deep, split, H200) < us(deep, whole, H200) / 4
    assert us(wide, split, H200) > us(wide, whole, H200)
    memory, cluster = (us(deep, parse(text + ",split_k=8" + more), H200) for more in ("", ",reduce=cluster"))
    assert 0.5 < memory - cluster < 15


def test_ctas_of_little_work_wait_for_their_tiles() -> None:
    # A tile of 16 x 32 is multiplied long before the next one has come from memory.
    problem = Problem.parse("16x4096x4096")
    small = parse("simt:16x32x16,thread=4x4,lanes_m=4,fragments=single,slices=4")
    depths = ((16, 2), (16, 3), (32, 3), (32, 4), (64, 4), (128, 4))
    times = [us(problem, small.changed(block_k=k, stages=stages), H200) for k, stages in depths]
    assert times == sorted(times, reverse=True)
    assert times[0] > 4 * times[-1]
    # Multiplying a tile of 128 x 128 takes longer than loading the next.
    few, many = (us(Problem.parse("4096"), parse(SIMT).changed(stages=each), H200) for each in (3, 5))
    assert few < 1.02 * many


def test_slices_with_barriers_of_their_own_wait_less_where_each_has_enough_steps() -> None:
    problem, sliced = Problem.parse("1024"), parse("simt:64x64x16,lanes_m=4,slices=4")
    for block_k, gains in ((64, True), (32, True), (16, False)):
        one, own = (us(problem, sliced.changed(block_k=block_k, slice_barriers=each), H200) for each in (False, True))
        assert (0.95 if gains else 1) * one <= own <= (0.98 if gains else 1) * one


@pytest.mark.parametrize(
    ("text", "dtype", "n", "least", "most"),
    [
        ("simt:64x128x8,lanes_m=2", "float", 8191, 2.9, 3.3),  # four stores of 4 bytes for a lane's 16
        ("simt:64x128x8,lanes_m=2", "float", 8190, 1.6, 1.9),
        ("simt:64x128x8,lanes_m=2", "float", 8188, 1.05, 1.15),  # whole vectors, which begin within sectors
        ("simt:64x128x8,lanes_m=2", "float", 8192, 1.0, 1.0),
        ("simt:64x128x8,lanes_m=2,k_inner_b", "float", 8191, 1.2, 1.45),  # lanes hold every other column
        ("dmma:64x64x16", "double", 8191, 1.9, 2.2),
        ("dmma:64x64x16", "double", 8190, 1.25, 1.45),
        ("dmma:64x64x16", "double", 8188, 1.0, 1.0),
    ],
)
def test_rows_of_c_that_are_no_whole_sectors_are_written_in_parts(
    text: str, dtype: str, n: int, least: float, most: float
) -> None:
    """Accumulators that pass through shared memory are written in whole sectors. Most of the time is for writing."""
    problem, both = Problem.parse(f"8192x{n}x1", dtype), [parse(text + more) for more in ("", ",shared")]
    direct, shared = (us(problem, config, H200) for config in both)
    assert least <= direct / shared <= most


def test_the_processor_takes_longer_for_more_barriers_waste_padding_and_tensor_cores() -> None:
    problem = Problem.parse("128")
    tiled = [host_us(problem, parse(f"tiled:{width}")) for width in (8, 16, 32)]
    assert tiled == sorted(tiled, reverse=True)
    one, two = (host_us(problem, parse(f"simt:64x64x{depth},slices=1,stages=2")) for depth in (16, 8))
    assert two > 1.01 * one  # the same copies and multiply-adds, and twice as many barriers
    whole, wasted = (host_us(Problem.parse(shape), parse("simt:64x64x16")) for shape in ("128", "65x65x128"))
    assert 0.9 * whole < wasted < 1.1 * whole  # both have four tiles
    naive = parse("naive:8x32")
    assert host_us(problem, naive.changed(edge=EdgePolicy.PAD)) > host_us(problem, naive)
    double = Problem.parse("128", "double")
    assert host_us(double, parse("dmma:64x64x16")) > 5 * host_us(double, parse("simt:64x64x16"))


@pytest.mark.parametrize("text", ["small:16x2x2", "naive:8x32", "simt:16x16x16,thread=2x2"])
def test_the_processor_takes_as_many_times_as_long_for_a_batch(text: str) -> None:
    once, more = (host_us(Problem(16, 16, 16, batch=batch), parse(text)) for batch in (160, 160_000))
    assert more == pytest.approx(1000 * once, rel=1e-4)


def test_the_processor_gains_nothing_from_mechanisms_that_overlap_work_on_a_gpu() -> None:
    problem = Problem.parse("256x256x1024")
    base = parse("simt:64x64x16,stages=2,fragments=single")
    for changes in ({"stages": 4}, {"raster": 8}, {"mode": Mode.SPLIT_K, "parts": 4}):
        assert host_us(problem, base.changed(**changes)) >= host_us(problem, base)


@pytest.mark.parametrize(
    ("shape", "dtype", "us"),
    [
        ("8192", "float", 2 * 8192**3 / 66.9e6),
        ("8192", "double", 2 * 8192**3 / 65.8e6),
        ("1x4096x4096", "float", (4096**2 + 8192) * 4 / 4.43e6),
        ("100", "float", 1.5),
    ],
)
def test_arithmetic_memory_or_the_launch_decides(shape: str, dtype: str, us: float) -> None:
    assert floor_us(INFO, Problem.parse(shape, dtype)) == pytest.approx(us)


def test_other_gpus_go_by_clock_and_cores() -> None:
    rates = rates_of(replace(INFO, name="NVIDIA A100", arch=ARCHES["sm_80"], sm_count=108, clock_mhz=1410))
    assert rates is not None
    assert rates.float_gflops == pytest.approx(19_492, rel=1e-3)
    assert rates.double_gflops == pytest.approx(19_492, rel=1e-3)
    assert rates.bandwidth_gbs == INFO.bandwidth_gbs
    desktop = rates_of(replace(INFO, name="NVIDIA RTX", arch=ARCHES["sm_89"], sm_count=128, clock_mhz=2520))
    assert desktop is not None
    assert desktop.double_gflops == pytest.approx(desktop.float_gflops / 64)


def test_nothing_is_claimed_of_the_processor() -> None:
    assert floor_us(choose("host"), Problem(64, 64, 64)) is None
