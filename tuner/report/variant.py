"""What a variant takes of a GPU, the least times that hold for it, and what limits it, in words."""

from dataclasses import dataclass

from ...codegen.config import Config
from ...codegen.errors import TilewrightError
from ...codegen.fit import nearest_fit
from ...codegen.problem import DType, Problem
from ...codegen.render import render
from ...runtime.check.roofline import LAUNCH_US, rates_of
from ...runtime.device.cache import compile_cached
from ...runtime.device.detect import compiler_for
from ...runtime.device.protocol import Binary, DeviceInfo
from ..bench.report import figure
from ..choose.model import L2_BYTES_PER_CYCLE, cta_limits

_BOUND, _MOST = 0.85, 0.6
"""Shares of the time from which on a least time is called its bound, or most of it."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What the CTAs of a variant take of the SMs of a GPU."""

    tiles: int
    """Tiles of C."""
    ctas: int
    """CTAs of the grid."""
    threads: int
    """Threads of a CTA."""
    smem_bytes: int
    """Shared memory of a CTA."""
    registers: int
    """Registers of a thread: of the compiled kernel, else at most so many by the config's prediction."""
    spill_bytes: int | None
    """Bytes of local memory of a thread: spilled registers; None where the kernel was not compiled here."""
    limits: tuple[tuple[str, int], ...]
    """CTAs that an SM has room for at a time, by each of its resources."""
    sm_count: int
    occupancy: float
    """Warps of an SM at a time, over the most there may be."""

    @property
    def concurrent(self) -> int:
        """CTAs of an SM at a time."""
        return max(1, min(count for _, count in self.limits))

    @property
    def limited_by(self) -> str:
        """The resources that keep it to those."""
        return " and ".join(name for name, count in self.limits if max(1, count) == self.concurrent)

    @property
    def waves(self) -> float:
        """The grid over the CTAs that the device runs at a time."""
        return self.ctas / (self.sm_count * self.concurrent)


def resources(problem: Problem, config: Config, gpu: DeviceInfo, binary: Binary | None = None) -> Resources:
    """What a variant takes, by its compiled kernel where there is one."""
    registers = binary.registers or 0 if binary else 0
    fit = nearest_fit(problem, config)
    limits = cta_limits(fit, problem.dtype, gpu.arch, registers)
    warps = -(-config.threads // 32) * max(1, min(limits.values()))
    return Resources(
        tiles=config.tiles(problem),
        ctas=config.ctas(problem, gpu.sm_count),
        threads=config.threads,
        smem_bytes=config.smem_bytes(problem.dtype),
        registers=registers or config.registers(fit, problem.dtype),
        spill_bytes=binary.frame_bytes if binary else None,
        limits=tuple(limits.items()),
        sm_count=gpu.sm_count,
        occupancy=warps * 32 / gpu.arch.max_threads_per_sm,
    )


def compiled(problem: Problem, config: Config, gpu: DeviceInfo) -> Binary | None:
    """The kernel's machine code, None where this machine cannot make it; needs a compiler and no GPU."""
    try:
        return compile_cached(compiler_for(gpu), render(problem, config, gpu))
    except (ImportError, TilewrightError):
        return None


def intensity(problem: Problem, config: Config) -> float:
    """Operations for each byte that the CTAs load, or store to C; caches may serve the re-reading."""
    reuse_a, reuse_b = config.reuse
    loaded = problem.m * problem.n * problem.k * (1 / reuse_a + 1 / reuse_b)
    return problem.flops / ((loaded + problem.m * problem.n) * problem.dtype.size_bytes)


@dataclass(frozen=True, slots=True)
class Roof:
    """Highest rates of a GPU for a problem."""

    gflops: float
    """10^9 operations a second."""
    memory_gbs: float
    """10^9 bytes a second from device memory."""
    l2_gbs: float
    """The same from the last-level cache while all SMs ask."""
    source: str
    """Where the first two are from."""


def roof_of(problem: Problem, gpu: DeviceInfo) -> Roof:
    """The roofline of a GPU."""
    rates = rates_of(gpu, problem.accuracy)
    assert rates is not None
    gflops = rates.float_gflops if problem.dtype is DType.FLOAT else rates.double_gflops
    l2_gbs = L2_BYTES_PER_CYCLE * gpu.sm_count * gpu.clock_mhz / 1e3
    return Roof(gflops, rates.bandwidth_gbs, l2_gbs, rates.source)


@dataclass(frozen=True, slots=True)
class Floor:
    """A least time of a variant."""

    name: str
    us: float


def floors(problem: Problem, config: Config, gpu: DeviceInfo) -> tuple[Floor, ...]:
    """What the variant cannot pass, the longest first, each as if it were alone."""
    roof, sms = roof_of(problem, gpu), gpu.sm_count
    tile_m, tile_n, _ = config.cta_tile
    units = config.tiles(problem) * config.split_ctas
    critical = units / sms if config.stream_ctas_per_sm else -(-units // sms)
    critical_flops = critical * 2 * tile_m * tile_n * problem.k / config.split_ctas
    found = [
        Floor("arithmetic, spread evenly over the SMs", problem.flops / roof.gflops / 1e3),
        Floor("arithmetic of the critical SM, which has most tiles", critical_flops / (roof.gflops / sms) / 1e3),
        Floor("traffic of device memory", problem.bytes / roof.memory_gbs / 1e3),
        Floor("traffic of the L2 cache", problem.flops / intensity(problem, config) / roof.l2_gbs / 1e3),
        Floor("a launch", LAUNCH_US),
    ]
    return tuple(sorted(found, key=lambda floor: -floor.us))


def reasons(taken: Resources, least: tuple[Floor, ...], us: float, gpu: DeviceInfo) -> list[str]:
    """What limits a variant that takes `us`: sentences."""
    first, share = least[0], least[0].us / us
    bound = f"The longest of its least times is {first.name}: {figure(first.us)} us of {figure(us)} us, {share:.0%}."
    if share >= _BOUND:
        bound += " The variant is bound by it."
    else:
        part = "the larger part" if share >= _MOST else "less than the larger part"
        bound += f" That is {part}; what is left is latency: launch, first loads, barriers, and the epilogue."
    warps = round(taken.occupancy * gpu.arch.max_threads_per_sm / 32)
    held = f"An SM has room for {taken.concurrent} CTA{'s' * (taken.concurrent > 1)} at a time, limited by "
    held += f"{taken.limited_by}: {warps} of {gpu.arch.max_threads_per_sm // 32} warps, {taken.occupancy:.0%} occupancy"
    each = -(-taken.ctas // taken.sm_count)
    held += f"; the grid gives it {each} at most." if each < taken.concurrent else "."
    return [bound, _waves(taken), held]


def _waves(taken: Resources) -> str:
    room = taken.sm_count * taken.concurrent
    text = f"{taken.ctas:,} CTAs on {taken.sm_count} SMs, {room:,} at a time, make {taken.waves:.2f} waves"
    rest = taken.ctas % room
    if taken.ctas <= room:
        idle = max(0, taken.sm_count - taken.ctas)
        return f"{text}: all run at once" + (f", and {idle} SMs have none." if idle else ".")
    return text + (f": the last one is {rest / room:.0%} full." if rest else ": the last one is full.")
