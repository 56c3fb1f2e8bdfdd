"""What is known of one variant once it has been tried."""

import enum
import math
from dataclasses import dataclass

from ...codegen.config import Config
from ...codegen.errors import check
from ...codegen.problem import Problem


class Status(enum.Enum):
    """How trying a variant ended."""

    OK = "ok"
    """Compiled, verified and timed."""
    PRUNED = "pruned"
    """A constraint rejected it before it was compiled, or it was stopped as hopelessly slow."""
    COMPILE_ERROR = "compile_error"
    """The compiler refused it."""
    LAUNCH_ERROR = "launch_error"
    """It asked for more than the device has left."""
    WRONG_RESULT = "wrong_result"
    """It ran, and its result broke the error bound or a canary."""
    TIMEOUT = "timeout"
    """It did not end in time."""
    CRASHED = "crashed"
    """It took its process down, or left the device in error."""
    LOST_DEVICE = "lost_device"
    """The device stopped answering."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far a result was from the reference."""

    worst: float
    """Largest error over its bound; right means at most 1."""
    row: int
    """Row of C where it is, -1 where nothing was compared."""
    col: int
    """Column of C where it is."""
    vendor: float | None = None
    """The same figure of the vendor's library on the same data, where it was run."""

    @property
    def ok(self) -> bool:
        """True where every error is within its bound; NaN is not."""
        return self.worst <= 1.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one variant, launch after launch over rotating inputs."""

    samples_us: tuple[float, ...]
    """Microseconds of one product, each the mean over one timed batch."""
    median_us: float
    """Their median."""
    spread_us: float
    """Their interquartile range."""
    end_to_end_us: float | None = None
    """Median with the operands copied to the device and the result back, where it was timed."""
    clock_mhz: float | None = None
    """Clock of the SMs seen while timing."""

    def __post_init__(self) -> None:
        good = math.isfinite(self.median_us) and self.median_us > 0 and self.spread_us >= 0
        check(good, f"median_us must be positive and finite, got {self.median_us}")


FIRST_USE = "first use"
"""The effort of a record of a few likely kernels, measured when the shape was first asked for."""


@dataclass(frozen=True, slots=True)
class Record:
    """One variant on one device for one problem: what came of it. Status decides which fields exist."""

    problem: Problem
    """What was computed."""
    device: str
    """Key of the device, such as `nvidia-h200`."""
    config: Config
    """The variant."""
    status: Status
    """How it ended."""
    reason: str = ""
    """Why, where it did not end well: one line."""
    measurement: Measurement | None = None
    """Present where status is ok, absent otherwise."""
    accuracy: Accuracy | None = None
    """Present where status is ok or wrong_result."""
    versions: tuple[tuple[str, str], ...] = ()
    """What the result depends on: generator, driver, compiler; names and versions, sorted by name."""
    digest: str = ""
    """SHA-256 of the kernel's source, in hexadecimal."""
    vendor_us: float | None = None
    """Median of the vendor's library on the same device in the same run."""
    ratio_vendor: float | None = None
    """Median of the paired ratios of the vendor's time over this one's: above 1 is faster than the vendor."""
    ratio_interval: tuple[float, float] | None = None
    """Confidence interval of that ratio."""
    effort: str = ""
    """How much was tried: that of `tune`, or FIRST_USE; empty where it is not known."""
    gpu: str = ""
    """UUID of the GPU that measured it, as its driver spells it; empty where it is not known."""

    def __post_init__(self) -> None:
        done = self.status is Status.OK
        check((self.measurement is not None) == done, f"{self.status.value} and measurement disagree")
        check(done or bool(self.reason), f"a record that is {self.status.value} needs a reason")
        check(not done or (self.accuracy is not None and self.accuracy.ok), "ok needs a passed accuracy")

    @property
    def median_us(self) -> float:
        """Median time in microseconds, infinity where it was not timed."""
        return self.measurement.median_us if self.measurement else math.inf

    @property
    def gflops(self) -> float:
        """Billions of floating-point operations a second, 0 where it was not timed."""
        return self.problem.flops / self.median_us / 1e3
