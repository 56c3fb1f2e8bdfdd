"""Result of a tuning run, and the listener that a run calls."""

import shlex
from dataclasses import dataclass

from ..codegen.config import Config
from ..codegen.problem import Grade, Problem
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.record import Record
from .measure.decide import Contender
from .measure.evaluate import Phases, Tried
from .recording.entry import Entry
from .settings import Budget


def load_command(problem: Problem, more: str = "") -> str:
    """A shell command that loads the kernel of a problem; `more` has further arguments of `load`."""
    arguments = f'"{problem.shape}", dtype="{problem.dtype.value}"'
    arguments += f', trans="{problem.trans}"' if problem.trans != "nn" else ""
    arguments += "" if problem.accuracy is Grade.IEEE else f', accuracy="{problem.accuracy}"'
    arguments += "" if problem.batch == 1 else f", batch={problem.batch}"
    return f"python -c {shlex.quote(f'import tilewright; print(tilewright.load({arguments}{more}))')}"


def options_of(problem: Problem) -> list[str]:
    """Options of a command that name a problem."""
    return ["--shape", problem.shape, *kind_options(problem)]


def kind_options(problem: Problem) -> list[str]:
    """Options of a command that name all of a problem but its sizes."""
    accuracy = [] if problem.accuracy is Grade.IEEE else ["--accuracy", problem.accuracy.value]
    batch = [] if problem.batch == 1 else ["--batch", str(problem.batch)]
    trans = [] if problem.trans == "nn" else ["--trans", problem.trans]
    return ["--dtype", problem.dtype.value, *trans, *accuracy, *batch]


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a tuning run of one problem on one device."""

    problem: Problem
    """Problem that was tuned."""
    device: DeviceInfo
    """Device on which the run measured."""
    best: Record
    """The winner; the store has it where `kept` is True."""
    contenders: tuple[Contender, ...]
    """Contenders of the duel, fastest first."""
    trials: int
    """Number of variants tried, resumed ones included."""
    resumed: int
    """Number of variants that earlier runs tried."""
    statuses: tuple[tuple[str, int], ...]
    """Number of variants of this run by status."""
    pruned: tuple[tuple[str, int], ...]
    """Number of variants rejected before compiling, by reason."""
    phases: Phases
    """Seconds of compiling, verifying and timing, summed over processes."""
    sampler_s: float
    """Seconds that the sampler took."""
    seconds: float
    """Seconds of the run, by the clock on the wall."""
    busy_share: float | None
    """Share of the wall time after the first ten seconds in which the worker had a variant or the duel in hand; None
    without a worker."""
    idle_s: float | None
    """Seconds in which the worker had nothing in hand; None without a worker."""
    compilers: int
    """Number of processes that compiled, 0 without isolation."""
    guessed_us: float | None
    """Least microseconds among the first 16 guesses, None where none worked."""
    stopped: str
    """Cause of the end of the search: trials, seconds, gain, space, interrupt or crashes."""
    expected_gain: float | None = None
    """Share of the best time that the next 40 variants were expected to save at the end; None where the sampler does
    not say."""
    sampler: str = ""
    """Name of the sampler."""
    seed: int = 0
    """Seed of the sampler's random generator."""
    named: tuple[Config, ...] = ()
    """Variants that the caller named; empty after a search."""
    outdone: bool = False
    """Whether the store has a faster record that was not in the duel: another process wrote it meanwhile, or there was
    no time to try it."""
    aa_spread: float | None = None
    """Distance of a contender of the duel from itself, as a share: 0.01 is 1%. Beyond NOISY there are no ratios."""

    @property
    def kept(self) -> bool:
        """Whether the winner was put in the store: it is not outdone and, where variants were named, is one of them."""
        return not self.outdone and (not self.named or self.best.config in self.named)


class Progress:
    """Listener that a run calls as it goes on; its own methods do nothing."""

    def started(self, problem: Problem, device: DeviceInfo, variants: int | None, budget: Budget, resumed: int) -> None:
        """Called once before the first variant, with the number of variants where they are listed, else None."""

    def resumed(self, problem: Problem, device: DeviceInfo, config: Config, entry: Entry) -> None:
        """Called after `started`, for each variant that an earlier run tried, with its outcome."""

    def tried(self, tried: Tried, best: Record | None) -> None:
        """Called after each variant, with the fastest record so far."""

    def duelling(self, configs: tuple[Config, ...]) -> None:
        """Called before the duel, with its finalists."""
