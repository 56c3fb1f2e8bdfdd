"""Resources of a GPU that a variant takes, its least times, and sentences on what limits it."""

from dataclasses import dataclass

from ...codegen.config import Config
from ...codegen.errors import TilewrightError
from ...codegen.fit import nearest_fit
from ...codegen.problem import Problem
from ...codegen.render import render
from ...runtime.check.roofline import LAUNCH_US, Bound, rates_of
from ...runtime.device.cache import compile_cached
from ...runtime.device.detect import compiler_for
from ...runtime.device.protocol import Binary, DeviceInfo
from ..bench.report import figure
from ..choose.model import L2_BYTES_PER_CYCLE, cta_limits

_BOUND = 0.85
"""Share of the measured time from which a least time counts as the limit of the variant."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources that the CTAs of a variant take of the SMs of a GPU."""

    ctas: int
    """Number of CTAs of the grid."""
    threads: int
    """Number of threads of a CTA."""
    smem_bytes: int
    """Bytes of shared memory of a CTA."""
    registers: int
    """Number of registers of a thread: of the compiled kernel, else the most that the config predicts."""
    spill_bytes: int | None
    """Bytes of a thread's spilled registers in local memory; None where the kernel was not compiled here."""
    limits: tuple[tuple[str, int], ...]
    """Number of CTAs that an SM has room for at a time, by each of its resources."""
    sm_count: int
    occupancy: float
    """Warps of an SM at a time, over the most there may be."""

    @property
    def concurrent(self) -> int:
        """Number of CTAs that an SM runs at a time."""
        return max(1, min(count for _, count in self.limits))

    @property
    def limited_by(self) -> str:
        """Names of the resources that leave no room for another CTA."""
        return " and ".join(name for name, count in self.limits if max(1, count) == self.concurrent)

    @property
    def waves(self) -> float:
        """Number of CTAs of the grid over the number that the device runs at a time."""
        return self.ctas / (self.sm_count * self.concurrent)


def resources(problem: Problem, config: Config, gpu: DeviceInfo, binary: Binary | None = None) -> Resources:
    """The resources that a variant takes, by its compiled kernel `binary` where there is one."""
    launch = config.launch_config(problem, gpu.sm_count)
    compiled_registers = binary.registers if binary else None
    registers = compiled_registers or config.registers(nearest_fit(problem, config), problem.dtype)
    limits = cta_limits(launch.threads, registers, launch.smem_bytes, gpu.arch)
    warps = -(-launch.threads // 32) * max(1, min(limits.values()))
    return Resources(
        ctas=launch.ctas,
        threads=launch.threads,
        smem_bytes=launch.smem_bytes,
        registers=registers,
        spill_bytes=binary.frame_bytes if binary else None,
        limits=tuple(limits.items()),
        sm_count=gpu.sm_count,
        occupancy=warps * 32 / gpu.arch.max_threads_per_sm,
    )


def compiled(problem: Problem, config: Config, gpu: DeviceInfo) -> Binary | None:
    """The kernel's machine code, which takes a compiler and no GPU; None where this machine cannot make it."""
    try:
        return compile_cached(compiler_for(gpu), render(problem, config, gpu))
    except (ImportError, TilewrightError):
        return None


def intensity(problem: Problem, config: Config) -> float:
    """Operations for each byte that the CTAs load or store; caches may serve what is read again."""
    stored = problem.planes * problem.m * problem.n
    return problem.flops / ((config.loaded_elements(problem) + stored) * problem.dtype.size_bytes)


def l2_gbs(gpu: DeviceInfo) -> float:
    """10^9 bytes a second that a GPU reads from its last-level cache while all SMs ask."""
    return L2_BYTES_PER_CYCLE * gpu.sm_count * gpu.clock_mhz / 1e3


def floors(problem: Problem, config: Config, gpu: DeviceInfo) -> tuple[Bound, ...]:
    """Least times of the variant, the longest first, each as if nothing else took time."""
    rates, sms = rates_of(gpu, problem.accuracy), gpu.sm_count
    assert rates is not None
    gflops = rates.gflops(problem.dtype)
    tile_m, tile_n, _ = config.cta_tile
    flops = problem.planes * config.tiles(problem) * 2 * tile_m * tile_n * problem.even.k  # also beyond the edges of C
    ctas = config.launch_config(problem, sms).ctas
    critical_flops = flops / sms if config.stream_ctas_per_sm else -(-ctas // sms) * flops / ctas
    bounds = [
        Bound("arithmetic, spread evenly over the SMs", problem.flops / gflops / 1e3),
        Bound("arithmetic of the busiest SM, which has most tiles", critical_flops / (gflops / sms) / 1e3),
        Bound("traffic of device memory", problem.bytes / rates.bandwidth_gbs / 1e3),
        Bound("traffic of the L2 cache", problem.flops / intensity(problem, config) / l2_gbs(gpu) / 1e3),
        Bound("the launch", LAUNCH_US),
    ]
    return tuple(sorted(bounds, key=lambda bound: -bound.us))


def reasons(taken: Resources, least: tuple[Bound, ...], us: float, gpu: DeviceInfo) -> list[str]:
    """Sentences on what limits a variant that takes `us` microseconds."""
    first, share = least[0], least[0].us / us
    cause = first.by.partition(",")[0]
    bound = f"{cause[0].upper()}{cause[1:]} alone takes {figure(first.us)} us, {share:.0%} of the measured {figure(us)}"
    if share >= _BOUND:
        bound += " us: this is what limits the variant."
    else:
        bound += f" us, and no other limit takes longer. The other {1 - share:.0%} goes to what no limit counts: the "
        bound += "launch, first loads, barriers, instructions beside the multiply-adds, and the last stores."
    warps = round(taken.occupancy * gpu.arch.max_threads_per_sm / 32)
    room = f"An SM has room for {taken.concurrent} CTA{'s' * (taken.concurrent > 1)} at a time, limited by "
    room += f"{taken.limited_by}: {warps} of {gpu.arch.max_threads_per_sm // 32} warps, {taken.occupancy:.0%} occupancy"
    each = -(-taken.ctas // taken.sm_count)
    room += f"; the grid gives it {each} at most." if each < taken.concurrent else "."
    return [bound, _waves(taken), room]


def _waves(taken: Resources) -> str:
    room = taken.sm_count * taken.concurrent
    text = f"{taken.ctas:,} CTAs on {taken.sm_count} SMs, {room:,} at a time, make {taken.waves:.2f} waves"
    rest = taken.ctas % room
    if taken.ctas <= room:
        idle = max(0, taken.sm_count - taken.ctas)
        return f"{text}: all run at once" + (f", and {idle} SMs have none." if idle else ".")
    return text + (f": the last one is {rest / room:.0%} full." if rest else ": the last one is full.")
