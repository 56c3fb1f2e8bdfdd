"""Results of a bench: rows of shapes, beside other libraries."""

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

from ...codegen.problem import Grade, Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.record import Status
from ..measure.ratios import noisy, spread

RATIOS = {
    "ratio": "back to back",
    "between_ratio": "with another library's kernel in between",
    "eager_ratio": "in eager calls",
}
"""Words for the ratios of a `Rival`, by the names of their fields."""
GIVEN = "as given"
"""Origin of a config that a user named."""
TITLES = {
    "cublas": "cuBLAS", "cublaslt": "cuBLASLt", "numpy": "NumPy", "hgemm3k": "HGEMM 3k", "bgemm6k": "BF16 6k",
    "tf32": "TF32 (coarser)",
}  # fmt: skip
"""Titles of the rivals, by their keys. `hgemm3k` and `bgemm6k` are one product of halves or bfloat16s by cuBLAS, three
or six times as long along k, with the kernels before and after it; `tf32` is cuBLAS with TF32, which no grade of
accuracy allows."""
COARSER = ("tf32",)
"""Keys of the rivals that keep no grade of accuracy: their speed is no measure of ours."""


def vendor_title(info: DeviceInfo | None) -> str:
    """Title of the vendor's library of a device; cuBLAS for a device without facts."""
    return TITLES["numpy" if info is not None and info.arch.is_host else "cublas"]


def finite(value: float) -> float | None:
    """The value, or None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Rival:
    """Another library on the same product, in the same rounds."""

    key: str
    """Key among TITLES, or the text of another variant of ours."""
    us: float
    """Median microseconds, inputs rotated."""
    ratio: float | None
    """Median over the rounds of the rival's time over ours: above 1 ours is faster. All ratios are None where the times
    were too noisy."""
    interval: tuple[float, float] | None
    """Confidence interval of `ratio`, 95% or what the rounds allow."""
    error_over_bound: float | None
    """Largest error over its bound, on the data that ours was checked on; None where it is not finite."""
    eager_us: float
    """Median microseconds from one call to its end, without a graph."""
    fixed_us: float | None
    """Median microseconds on inputs that stay in the cache; None where not timed."""
    between_us: float | None = None
    """Median microseconds that a product adds to a kernel of the array library between two products; None where not
    timed."""
    between_ratio: float | None = None
    """Median over the rounds of the rival's `between_us` over ours."""
    between_interval: tuple[float, float] | None = None
    """Confidence interval of `between_ratio`."""
    eager_ratio: float | None = None
    """Median over the calls of the rival's eager time over ours."""


@dataclass(frozen=True, slots=True)
class KindError:
    """The worst error of a contender on one kind of data."""

    kind: str
    """Name of a kind in `runtime.check.kinds`."""
    contender: str
    """`ours` or the key of a rival."""
    elementwise: float
    """Error over u |A||B|, element by element; NaN where C has a NaN."""
    normwise: float
    """Error over u times the norms of row and column."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Results of one shape. Times are None where `status` is not ok."""

    problem: Problem
    config: str = ""
    """Text of the variant that the library runs; empty where the failure came before it was chosen."""
    origin: str = ""
    """Origin of the config: `exact`, `predicted`, `default` or `as given`."""
    status: Status = Status.OK
    reason: str = ""
    """Reason for a status that is not ok, in one line."""
    notes: tuple[str, ...] = ()
    """Lines on warnings of the library as it loaded the kernel, and on rivals that could not run."""
    ours_us: float | None = None
    """Median microseconds, inputs rotated."""
    floor_us: float | None = None
    """Least microseconds that the device allows; None for the processor."""
    error_over_bound: float | None = None
    """Largest error over its bound; at most 1 is right."""
    eager_us: float | None = None
    """Median microseconds from one call to its end, without a graph."""
    fixed_us: float | None = None
    """Median microseconds on inputs that stay in the cache; None where not timed."""
    between_us: float | None = None
    """Median microseconds that a product adds to a kernel of the array library between two products; None where not
    timed."""
    between_kernel_us: float | None = None
    """Median microseconds of the array library's kernel without products, already subtracted from `between_us`."""
    aa_interval: tuple[float, float] | None = None
    """Confidence interval of the ratio of ours to ours, timed as two contenders: the error of the method itself."""
    rounds: int = 0
    """Number of rounds."""
    clock_mhz: float | None = None
    """Clock at the end."""
    held_back: bool = False
    """Whether the device had lowered its clock for power or heat."""
    rivals: tuple[Rival, ...] = ()
    """Rivals that ran."""
    error_kinds: tuple[KindError, ...] = ()
    """Errors on six kinds of data, where the accuracy is not `ieee`."""
    taken_from: str = ""
    """The other tuned shape that the config was taken from; empty where it is the row's own."""
    handed_over: bool = False
    """Whether `matmul` takes the vendor's library in place of the config, which is slower."""

    def __post_init__(self) -> None:
        if self.noisy:
            no_ratios: Any = dict.fromkeys(("ratio", "interval", "between_ratio", "between_interval", "eager_ratio"))
            object.__setattr__(self, "rivals", tuple(replace(rival, **no_ratios) for rival in self.rivals))

    @property
    def noisy(self) -> bool:
        """Whether ours differed too much from itself for ratios: the row has none."""
        return noisy(self.aa_spread)

    @property
    def ok(self) -> bool:
        """Whether the shape was checked and timed."""
        return self.status is Status.OK

    def rival(self, key: str) -> Rival | None:
        """The rival of this key; None where it did not run."""
        return next((rival for rival in self.rivals if rival.key == key), None)

    def us_of(self, key: str) -> float | None:
        """The median microseconds of `ours` or of a rival."""
        rival = self.rival(key)
        return self.ours_us if key == "ours" else rival.us if rival else None

    @property
    def used_ratio(self) -> float | None:
        """The vendor's time over the time of `matmul`: 1 where that takes the vendor's library."""
        vendor = self.rival("cublas")
        return None if vendor is None else 1.0 if self.handed_over else vendor.ratio

    def tflops(self, us: float | None) -> float | None:
        """10^12 operations a second at `us` microseconds a product."""
        return self.problem.flops / us / 1e6 if us else None

    @property
    def aa_spread(self) -> float | None:
        """Distance of the farther end of `aa_interval` from 1, as a share: 0.01 is 1% from itself."""
        return spread(self.aa_interval) if self.aa_interval else None

    @property
    def floor_share(self) -> float | None:
        """The floor over our time: 1 is as fast as the device can be."""
        return self.floor_us / self.ours_us if self.floor_us and self.ours_us else None


@dataclass(frozen=True, slots=True)
class Setting:
    """Libraries that a device is compared with."""

    rivals: tuple[str, ...]
    """Keys of the rivals that are installed."""
    versions: tuple[tuple[str, str], ...]
    """Names and versions of all that a time depends on."""
    missing: tuple[str, ...] = ()
    """A line for each library that is missing, on how to get it."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Results of a run, complete or so far."""

    device: DeviceInfo
    setting: Setting
    date: str
    """Day and time of the start, UTC, ISO 8601."""
    wanted: int
    """Number of shapes that the run was started for."""
    rows: tuple[BenchRow, ...] = ()
    stopped: str = ""
    """Cause of an early end: `interrupt`, or crashes in words; empty where it came to its end."""
    turn_seconds: float = 0.0
    """Seconds of each contender's turn; 0 where batches alternated."""

    @property
    def graded(self) -> bool:
        """Whether some product need not be `ieee`."""
        return any(row.problem.accuracy is not Grade.IEEE for row in self.rows)

    @property
    def dtypes(self) -> str:
        """The element types of the rows, in words, and their accuracy where it is not `ieee`."""
        problems = [row.problem for row in self.rows]
        texts = (p.dtype.value + ("" if p.accuracy is Grade.IEEE else f" ({p.accuracy})") for p in problems)
        return " and ".join(dict.fromkeys(texts))

    @property
    def names(self) -> list[str]:
        """Names of the rows: shapes, with dtype, transposes and accuracy where these differ, and configs where several
        rows have one product."""
        kinds, problems = {row.problem.kind for row in self.rows}, [row.problem for row in self.rows]
        names = [problem.title if len(kinds) == 1 else str(problem) for problem in problems]
        if len(set(problems)) == len(problems):
            return names
        return [f"{name} {row.config}" if row.config else name for name, row in zip(names, self.rows)]

    def compared(self, key: str) -> tuple[Rival, ...]:
        """The rival's results in all rows that are ok and have them."""
        return tuple(rival for row in self.rows if row.ok and (rival := row.rival(key)))

    def geomean(self, key: str, name: str = "ratio") -> float | None:
        """Geometric mean of a rival's ratios over the rows that have them, None where none has; `name` is one of
        RATIOS."""
        ratios = [ratio for rival in self.compared(key) if (ratio := getattr(rival, name)) is not None]
        return statistics.geometric_mean(ratios) if ratios else None

    @property
    def used_ratios(self) -> tuple[float, ...]:
        """`used_ratio` of each row that is ok and has one."""
        return tuple(ratio for row in self.rows if row.ok and (ratio := row.used_ratio) is not None)

    @property
    def hands_over(self) -> int:
        """Number of the shapes for which `matmul` takes the vendor's library."""
        return sum(row.ok and row.handed_over and row.used_ratio is not None for row in self.rows)

    @property
    def geomean_floor(self) -> float | None:
        """Geometric mean of the shares of the floor."""
        shares = [share for row in self.rows if row.ok and (share := row.floor_share)]
        return statistics.geometric_mean(shares) if shares else None

    @property
    def worst_aa(self) -> float | None:
        """Largest `aa_spread` of all rows: a ratio that is nearer to 1 says nothing."""
        return max((spread for row in self.rows if (spread := row.aa_spread) is not None), default=None)
