"""Tables of a page, whose cells are text."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import escape

from ...codegen.config import Config
from ...runtime.check.roofline import Bound
from ...runtime.device.protocol import DeviceInfo
from ..bench.report import figure
from ..measure.evaluate import TIE
from .importance import Importance
from .tuning import Trial, Tuning, shortened
from .variant import compiled, floors, reasons, resources

ROOM_BYTES = 1_000_000
"""Most bytes of the table of trials, so that a page stays below 2 MB."""
BESIDE = 4
"""Number of variants that are shown beside the winner."""
_UNKNOWN = "-"
"""Text of a cell without a value."""


@dataclass(frozen=True, slots=True)
class Head:
    """Head of a column."""

    heading: str
    hint: str = ""
    """Explanation that a browser shows where the pointer rests on the heading."""
    left: bool = False
    """Whether cells begin below each other, as words do; else they end below each other, as numbers do."""
    wraps: bool = False
    """Whether cells may take several lines."""


@dataclass(frozen=True, slots=True)
class Table:
    """Heads of columns, and rows of cells."""

    heads: tuple[Head, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0
    """Number of rows that there was no room for."""

    def trimmed(self) -> "Table":
        """The table without its empty columns."""
        full = [any(cells) for cells in zip(*self.rows)]
        rows = tuple(tuple(itertools.compress(row, full)) for row in self.rows)
        return Table(tuple(itertools.compress(self.heads, full)), rows, self.left_out)


_TIME = (
    Head("us", "median time of one product in microseconds"),
    Head("variant", "family, tile, and what differs from the family's defaults", left=True, wraps=True),
    Head("GFLOP/s", "10^9 floating-point operations a second"),
)
"""Columns that a narrow screen shows before the others."""
_ERROR = Head("err/bound", "largest error over its proven bound; at most 1 is right")
_THREADS = Head("threads", "of a CTA")
_SMEM = Head("smem KiB", "shared memory of a CTA")
_CTAS = Head("CTAs", "of the grid")
_ON_SM = (
    _CTAS,
    Head("waves", "CTAs over those that the device runs at a time"),
    Head("CTAs/SM", "that an SM has room for at a time"),
    Head("occupancy", "warps of an SM at a time over the most there may be"),
)


def trials_table(tuning: Tuning) -> Table:
    """Trials, the fastest first, then the failed ones, as many as there is room for."""
    problem, gpu, fastest = tuning.problem, tuning.gpu, tuning.fastest
    best_us = fastest[0].entry.time_us if fastest else None
    failed = [trial for trial in tuning.trials if not trial.entry.time_us]
    failure = Head("failed", "how, and why", left=True, wraps=True)
    speed = (*_TIME, Head("x best", "time over the best"), _ERROR, Head("trial", "place in the search"))
    heads = (*speed, *((_CTAS,) if gpu else ()), _THREADS, _SMEM, failure)

    def row(trial: Trial) -> Iterable[str]:
        entry, config = trial.entry, trial.config
        us = entry.time_us
        yield from (figure(us), trial.variant, figure(us and problem.flops / us / 1e3))
        yield f"{us / best_us:.3f}" if us and best_us else ""
        yield "" if entry.error is None else f"{entry.error:.2g}"
        yield str(trial.number)
        if gpu:
            yield str(config.ctas(problem, gpu.sm_count)) if config else ""
        yield str(config.threads) if config else ""
        yield f"{config.smem_bytes(problem.dtype) / 1024:.3g}" if config else ""
        yield "" if us else shortened(f"{entry.status}: {entry.reason}" if entry.reason else entry.status)

    last = _fitting(map(row, failed), ROOM_BYTES // 10)
    first = _fitting(map(row, fastest), ROOM_BYTES - sum(map(_bytes, last)))
    return Table(heads, (*first, *last), len(tuning.trials) - len(first) - len(last)).trimmed()


def _fitting(rows: Iterable[Iterable[str]], room_bytes: int) -> list[tuple[str, ...]]:
    """The first rows that together take at most `room_bytes`."""
    fitting = []
    for row in map(tuple, rows):
        room_bytes -= _bytes(row)
        if room_bytes < 0:
            break
        fitting.append(row)
    return fitting


def _bytes(row: Sequence[str]) -> int:
    """Bytes of a row as markup, in which each cell begins with a tag and each comma is followed by one."""
    return 24 + sum(4 + len(escape(cell).encode(errors="backslashreplace")) + 5 * cell.count(",") for cell in row)


@dataclass(frozen=True, slots=True)
class Why:
    """Reasons for the winner on a GPU."""

    beside: Table
    """Resources of the winner and of the next variants."""
    floors: tuple[tuple[Bound, float], ...]
    """Least times, and their shares of the winner's time."""
    sentences: tuple[str, ...]


def why(tuning: Tuning, gpu: DeviceInfo, config: Config) -> Why:
    """The reasons for the winner. It and the next variants are compiled where there is a compiler for the GPU."""
    problem, us = tuning.problem, tuning.winner[2]
    others = [t for t in tuning.fastest if t.config and t.config != config][:BESIDE]
    shown = [(config, us), *((t.config, t.entry.time_us) for t in others)]
    limited = Head("limited by", "what an SM has no more of for another CTA", left=True)
    compiler = (Head("registers", "of a thread"), Head("spills B", "local memory of a thread"))
    heads = (*_TIME[:2], *_ON_SM, limited, *compiler, _THREADS, _SMEM)
    rows, taken_by = [], []
    for each, time_us in shown:
        assert each is not None
        binary = compiled(problem, each, gpu)
        taken = resources(problem, each, gpu, binary)
        taken_by.append(taken)
        registers = ("" if binary else "≤ ") + str(taken.registers)
        spills = _UNKNOWN if taken.spill_bytes is None else str(taken.spill_bytes)
        on_sm = (str(taken.ctas), f"{taken.waves:.2f}", str(taken.concurrent), f"{taken.occupancy:.0%}")
        numbers = (*on_sm, taken.limited_by, registers, spills, str(taken.threads))
        rows.append((figure(time_us), str(each), *numbers, f"{taken.smem_bytes / 1024:.3g}"))
    least = floors(problem, config, gpu)
    sentences = reasons(taken_by[0], least, us, gpu)
    if taken_by[0].spill_bytes is None:
        sentences.append("Registers are what the config predicts at most; spills are known where NVRTC is installed.")
    if tuning.fastest and (best := tuning.fastest[0].entry.time_us) and best < us:
        sentences.append(
            f"The fastest of the trials took {figure(best)} us. A winner is decided by its duel beside the vendor's "
            f"library; of variants within {TIE:.1%} of the fastest there, the first in the family's order wins."
        )
    return Why(Table(heads, tuple(rows)), tuple((floor, floor.us / us) for floor in least), tuple(sentences))


def contenders_table(tuning: Tuning, vendor: str) -> Table:
    """Contenders of the duel."""
    heads = (
        *_TIME,
        Head("spread", "interquartile range over the median"),
        Head(f"x {vendor}", "its time over this one's, paired round by round: above 1 is faster than it"),
        Head("interval", "95% confidence interval of that ratio"),
        Head("between us", "added to another library's kernel between two products"),
        _ERROR,
    )
    rows = []
    for each in tuning.contenders:
        us = each.measurement.median_us
        ratio = (figure(each.ratio_vendor), "..".join(map(figure, each.interval or ()))) if each.config else ("1", "")
        speed = (figure(us), str(each.config or vendor), figure(tuning.problem.flops / us / 1e3))
        error = (figure(each.between_us), f"{each.accuracy.worst:.2g}")
        rows.append((*speed, f"{each.measurement.spread_us / us:.1%}", *ratio, *error))
    return Table(heads, tuple(rows)).trimmed()


def importance_table(importances: Sequence[Importance], winner: Config) -> Table:
    """Parameters, the most important first."""
    forest = any(each.fanova is not None for each in importances)
    heads = (
        Head("parameter", left=True),
        Head("PED-ANOVA", "importance for being among the fastest tenth; the shares add up to 100%"),
        *((Head("fANOVA", "share of the variance of log time explained alone"),) if forest else ()),
        Head("winner", "its value", left=True),
        Head("best us with each value", "least time of the trials that have the value", left=True, wraps=True),
        Head("what it is", left=True, wraps=True),
    )
    rows = []
    for each in importances:
        values = ", ".join(f"{value}: {figure(us)}" for value, us in each.best_us)
        shares = [each.pedanova, *([each.fanova or 0.0] if forest else [])]
        won = str(dict(winner.values)[each.name])
        rows.append((each.name, *(f"{share:.1%}" for share in shares), won, values, each.meaning))
    return Table(heads, tuple(rows))
