"""What timing a list of shapes against other libraries found."""

import math
import statistics
from dataclasses import dataclass, replace

from ...codegen.problem import Grade, Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.record import Status
from ..measure.ratios import noisy, spread

RATIOS = {
    "ratio": "back to back",
    "between_ratio": "with another library's kernel in between",
    "eager_ratio": "in eager calls",
}
"""The ratios of a `Rival`, by the names of their fields."""
GIVEN = "as given"
"""Where a config comes from that a user named."""
TITLES = {
    "cublas": "cuBLAS", "cublaslt": "cuBLASLt", "numpy": "NumPy", "hgemm3k": "HGEMM 3k", "bgemm6k": "BF16 6k",
    "tf32": "TF32 (coarser)",
}  # fmt: skip
"""What kernels are compared with, by the word for it in names of fields. `hgemm3k` and `bgemm6k` are one product of
halves or bfloat16s by cuBLAS, three or six times as long along k, with all that goes before and after; `tf32` is
cuBLAS with TF32, which no grade of accuracy allows."""
COARSER = ("tf32",)
"""Those that keep no grade: their speed is no measure of ours."""


def finite(value: float) -> float | None:
    """None for what JSON has no word for."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Rival:
    """Another library on the same product, in the same rounds."""

    key: str
    """One of TITLES, or the text of another variant of ours."""
    us: float
    """Median, inputs rotated."""
    ratio: float | None
    """Median over the rounds of its time over ours: above 1 is ours faster. None where the times were too noisy, as for
    all ratios."""
    interval: tuple[float, float] | None
    """Confidence interval of that ratio, 95% or what the rounds allow."""
    error_over_bound: float | None
    """Largest error over its bound, on the data that ours was checked on; None where it is not finite."""
    eager_us: float
    """Median from one call to its end, without a graph."""
    fixed_us: float | None
    """Median on inputs that stay in the cache, where that was timed."""
    between_us: float | None = None
    """Median of what it adds to a kernel of the array library that comes between two products, where that was timed."""
    between_ratio: float | None = None
    """Median over the rounds of these times: theirs over ours, with its interval."""
    between_interval: tuple[float, float] | None = None
    eager_ratio: float | None = None
    """Median over the calls of the eager times: theirs over ours."""

    def without_ratios(self) -> "Rival":
        """Its times alone."""
        none = replace(self, ratio=None, interval=None, eager_ratio=None)
        return replace(none, between_ratio=None, between_interval=None)


@dataclass(frozen=True, slots=True)
class KindError:
    """The worst error of a contender on one kind of data."""

    kind: str
    """One of `runtime.check.kinds`."""
    contender: str
    """`ours` or the key of a rival."""
    elementwise: float
    """Over u |A||B|, element by element; NaN where C has one."""
    normwise: float
    """Over u times the norms of row and column."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One shape. Times are None where `status` is not ok."""

    problem: Problem
    config: str = ""
    """The variant that the library runs, as text; empty where it did not come so far."""
    origin: str = ""
    """Where that is from: `exact`, `predicted`, `default` or `as given`."""
    status: Status = Status.OK
    reason: str = ""
    """Why, where it did not end well: one line."""
    notes: tuple[str, ...] = ()
    """Warnings of the library as it loaded the kernel, and rivals that could not run: a line each."""
    ours_us: float | None = None
    """Median, inputs rotated."""
    floor_us: float | None = None
    """What the device cannot pass; None for the processor."""
    error_over_bound: float | None = None
    """Largest error over its bound; at most 1 is right."""
    eager_us: float | None = None
    """Median from one call to its end, without a graph."""
    fixed_us: float | None = None
    """Median on inputs that stay in the cache, where that was timed."""
    between_us: float | None = None
    """Median of what it adds to a kernel of the array library that comes between two products, where that was timed."""
    between_kernel_us: float | None = None
    """Median of that kernel without products, which is taken off."""
    aa_interval: tuple[float, float] | None = None
    """Confidence interval of the ratio of ours to ours, timed as two contenders: what the method itself is worth."""
    rounds: int = 0
    clock_mhz: float | None = None
    """Clock seen at the end."""
    held_back: bool = False
    """Whether the device had lowered it for power or heat."""
    rivals: tuple[Rival, ...] = ()
    """The other libraries, those that ran."""
    error_kinds: tuple[KindError, ...] = ()
    """Errors on six kinds of data, where the accuracy is not `ieee`."""
    taken_from: str = ""
    """The tuned shape whose config it is, where that is another one."""
    handed_over: bool = False
    """Whether `matmul` takes the vendor's library in its place: a record, or what was measured for other shapes, says
    that it is faster."""

    def __post_init__(self) -> None:
        if self.noisy:
            object.__setattr__(self, "rivals", tuple(rival.without_ratios() for rival in self.rivals))

    @property
    def noisy(self) -> bool:
        """Whether ours was so far from itself that ratios say nothing: then there are none."""
        return noisy(self.aa_spread)

    @property
    def ok(self) -> bool:
        """Checked and timed."""
        return self.status is Status.OK

    def rival(self, key: str) -> Rival | None:
        """The rival called `key`, where it ran."""
        return next((rival for rival in self.rivals if rival.key == key), None)

    def us_of(self, key: str) -> float | None:
        """The median of `ours` or of a rival."""
        rival = self.rival(key)
        return self.ours_us if key == "ours" else rival.us if rival else None

    @property
    def used_ratio(self) -> float | None:
        """The vendor's time over that of what `matmul` takes: 1 where that is the vendor's library."""
        vendor = self.rival("cublas")
        return None if vendor is None else 1.0 if self.handed_over else vendor.ratio

    def tflops(self, us: float | None) -> float | None:
        """10^12 operations a second at `us` a product."""
        return self.problem.flops / us / 1e6 if us else None

    @property
    def aa_spread(self) -> float | None:
        """The end of `aa_interval` that is farther from 1, as a share: 0.01 is 1% from itself."""
        return spread(self.aa_interval) if self.aa_interval else None

    @property
    def floor_share(self) -> float | None:
        """The floor over our time: 1 is as fast as the device can be."""
        return self.floor_us / self.ours_us if self.floor_us and self.ours_us else None


@dataclass(frozen=True, slots=True)
class Setting:
    """What a device is compared with there."""

    rivals: tuple[str, ...]
    """Words for the libraries that are present."""
    versions: tuple[tuple[str, str], ...]
    """Names and versions of all that a time depends on."""
    missing: tuple[str, ...] = ()
    """A line for each library that is not there, saying how to get it."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A run, whole or as far as it came."""

    device: DeviceInfo
    setting: Setting
    date: str
    """Day and time of the start, UTC, ISO 8601."""
    wanted: int
    """Shapes asked for."""
    rows: tuple[BenchRow, ...] = ()
    stopped: str = ""
    """What ended it early: `interrupt`, or crashes in words; empty where it came to its end."""
    turn_seconds: float = 0.0
    """How long each contender ran in its turn; 0 where batches alternated."""

    @property
    def graded(self) -> bool:
        """Whether some product need not be `ieee`."""
        return any(row.problem.accuracy is not Grade.IEEE for row in self.rows)

    @property
    def dtypes(self) -> str:
        """The element types of the rows, in words, and their accuracy where it is not `ieee`."""
        problems = [row.problem for row in self.rows]
        told = (p.dtype.value + ("" if p.accuracy is Grade.IEEE else f" ({p.accuracy})") for p in problems)
        return " and ".join(dict.fromkeys(told))

    @property
    def names(self) -> list[str]:
        """Names of the rows: shapes, with dtype, transposes and accuracy where these differ, and configs where several
        rows have one product."""
        kinds, problems = {row.problem.kind for row in self.rows}, [row.problem for row in self.rows]
        names = [problem.shape if len(kinds) == 1 else str(problem) for problem in problems]
        if len(set(problems)) == len(problems):
            return names
        return [f"{name} {row.config}" if row.config else name for name, row in zip(names, self.rows)]

    def compared(self, key: str) -> tuple[Rival, ...]:
        """The rival in every row that counts."""
        found = (row.rival(key) for row in self.rows if row.ok)
        return tuple(rival for rival in found if rival is not None)

    def geomean(self, key: str, name: str = "ratio") -> float | None:
        """Geometric mean of the ratios to a rival over the rows that have them, None where there are none; `name` is
        one of RATIOS."""
        ratios = [ratio for rival in self.compared(key) if (ratio := getattr(rival, name)) is not None]
        return statistics.geometric_mean(ratios) if ratios else None

    @property
    def used_ratios(self) -> tuple[float, ...]:
        """The ratios of what `matmul` takes, of the rows that have them."""
        return tuple(ratio for row in self.rows if row.ok and (ratio := row.used_ratio) is not None)

    @property
    def hands_over(self) -> int:
        """For how many of these shapes `matmul` takes the vendor's library."""
        return sum(row.ok and row.handed_over and row.used_ratio is not None for row in self.rows)

    @property
    def geomean_floor(self) -> float | None:
        """Geometric mean of the shares of the floor."""
        shares = [share for row in self.rows if row.ok and (share := row.floor_share)]
        return statistics.geometric_mean(shares) if shares else None

    @property
    def worst_aa(self) -> float | None:
        """The farthest that a kernel was from itself: a ratio nearer to 1 than this says nothing."""
        return max((spread for row in self.rows if (spread := row.aa_spread) is not None), default=None)
