"""Record of one variant that was tried."""

import enum
import math
from dataclasses import dataclass

from ...codegen.config import Config
from ...codegen.errors import check
from ...codegen.problem import Problem


class Status(enum.Enum):
    """Outcome of trying a variant."""

    OK = "ok"
    """The variant was compiled, verified and timed."""
    PRUNED = "pruned"
    """A constraint rejected the variant before it was compiled, or it was stopped as far too slow."""
    COMPILE_ERROR = "compile_error"
    """The compiler refused the text."""
    LAUNCH_ERROR = "launch_error"
    """The launch asked for more than the device has left."""
    WRONG_RESULT = "wrong_result"
    """The kernel ran, and its result broke the error bound or a canary."""
    TIMEOUT = "timeout"
    """The kernel did not finish in time."""
    CRASHED = "crashed"
    """The kernel ended its process, or left the device in error."""
    LOST_DEVICE = "lost_device"
    """The device stopped answering."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Error of a result."""

    worst: float
    """Largest error over its bound; at most 1 for a right result."""
    row: int
    """Row of C with that error, -1 where nothing was compared."""
    col: int
    """Column of C with that error."""
    vendor: float | None = None
    """Largest error over its bound of the vendor's library on the same data, where it was run."""

    @property
    def ok(self) -> bool:
        """Whether every error is within its bound; NaN is not."""
        return self.worst <= 1.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one variant, launch after launch over rotating inputs."""

    samples_us: tuple[float, ...]
    """Microseconds of one product, each the mean over one timed batch."""
    median_us: float
    """Median of the samples."""
    spread_us: float
    """Interquartile range of the samples."""
    end_to_end_us: float | None = None
    """Median with the operands copied to the device and the result back, where it was timed."""
    clock_mhz: float | None = None
    """Clock of the SMs while timing."""

    def __post_init__(self) -> None:
        good = math.isfinite(self.median_us) and self.median_us > 0 and self.spread_us >= 0
        check(good, f"median_us must be positive and finite, got {self.median_us}")


FIRST_USE = "first use"
"""Effort of a record for which a few likely kernels were measured at the first use of its shape."""


@dataclass(frozen=True, slots=True)
class Record:
    """Outcome of one variant on one device for one problem. Its status decides which fields exist."""

    problem: Problem
    """Problem that was computed."""
    device: str
    """Key of the device, such as `nvidia-h200`."""
    config: Config
    """The variant."""
    status: Status
    """Outcome of the trial."""
    reason: str = ""
    """Reason of a failure, in one line."""
    measurement: Measurement | None = None
    """Present where status is ok, absent otherwise."""
    accuracy: Accuracy | None = None
    """Present where status is ok or wrong_result."""
    versions: tuple[tuple[str, str], ...] = ()
    """Names and versions of the generator, driver and compiler that the result depends on, sorted by name."""
    digest: str = ""
    """SHA-256 of the kernel's source, in hexadecimal."""
    vendor_us: float | None = None
    """Median microseconds of the vendor's library on the same device in the same run."""
    ratio_vendor: float | None = None
    """Median of the paired ratios of the vendor's time to the variant's: above 1 is faster than the vendor."""
    ratio_interval: tuple[float, float] | None = None
    """Confidence interval of that ratio."""
    effort: str = ""
    """Effort of the search: one of `tune`, or FIRST_USE; empty where it is unknown."""
    gpu: str = ""
    """UUID of the GPU that measured it, as the driver spells it; empty where it is unknown."""

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
