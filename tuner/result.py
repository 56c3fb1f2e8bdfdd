"""Result of a tuning run, and the listener that follows the run."""

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
    """A command of the shell that loads what runs for a problem; `more` is further arguments of `load`."""
    arguments = f'"{problem.shape}", dtype="{problem.dtype.value}"'
    arguments += f', trans="{problem.trans}"' if problem.trans != "nn" else ""
    arguments += "" if problem.accuracy is Grade.IEEE else f', accuracy="{problem.accuracy}"'
    return f"python -c {shlex.quote(f'import tilewright; print(tilewright.load({arguments}{more}))')}"


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a tuning run of one problem on one device."""

    problem: Problem
    """Problem that was tuned."""
    device: DeviceInfo
    """Device on which the run measured."""
    best: Record
    """The winner, as kept in the store where `kept` says so."""
    contenders: tuple[Contender, ...]
    """All of the duel, fastest first."""
    trials: int
    """Variants tried, resumed ones included."""
    resumed: int
    """How many of them came from earlier runs."""
    statuses: tuple[tuple[str, int], ...]
    """How many ended in which status, in this run."""
    pruned: tuple[tuple[str, int], ...]
    """Configs rejected before compiling, by reason."""
    phases: Phases
    """Where the measuring and compiling time went, summed over processes."""
    sampler_s: float
    """Seconds that the sampler took."""
    seconds: float
    """Wall time of the run."""
    busy_share: float | None
    """Share of the wall time after the first ten seconds in which the worker had a variant, or the duel, in hand."""
    idle_s: float | None
    """Seconds in which it had nothing in hand. None without a worker."""
    compilers: int
    """Processes that compiled, 0 without isolation."""
    guessed_us: float | None
    """Best time among the first 16 guesses, None where none worked."""
    stopped: str
    """What ended the search: trials, seconds, gain, space, interrupt or crashes."""
    expected_gain: float | None = None
    """Share of the best time that the next 40 variants were expected to save at the end; None where the sampler does
    not say."""
    sampler: str = ""
    """What chose the variants, and the seed of its random numbers."""
    seed: int = 0
    named: tuple[Config, ...] = ()
    """The variants that the caller named; empty after a search."""
    outdone: bool = False
    """Whether the store has a faster record that was not in the duel: another process kept it meanwhile, or there was
    no time to try it."""
    aa_spread: float | None = None
    """How far a contender of the duel was from itself, as a share: 0.01 is 1%. Beyond NOISY there are no ratios."""

    @property
    def kept(self) -> bool:
        """Whether the winner was put in the store: unless it is outdone, and of named variants one that beats what the
        library runs now."""
        return not self.outdone and (not self.named or self.best.config in self.named)


class Progress:
    """Told what happens while a run goes on. This one says nothing."""

    def started(self, problem: Problem, device: DeviceInfo, variants: int | None, budget: Budget, resumed: int) -> None:
        """Called once before the first variant, with the number of variants where they are listed."""

    def resumed(self, problem: Problem, device: DeviceInfo, config: Config, entry: Entry) -> None:
        """After that, for each variant that an earlier run tried, with what came of it."""

    def tried(self, tried: Tried, best: Record | None) -> None:
        """After each variant."""

    def duelling(self, configs: tuple[Config, ...]) -> None:
        """Before the final comparison."""
