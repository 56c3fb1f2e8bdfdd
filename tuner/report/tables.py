"""Tables of a page, whose cells are text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import escape

from ...codegen.config import Config
from ...runtime.check.roofline import Bound
from ...runtime.device.protocol import DeviceInfo
from ..bench.report import Column, figure
from ..bench.rows import TITLES
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


_TIME = ("us", "variant")
"""Headings of the columns that a narrow screen shows before the others."""
HINTS = {
    "us": "median time of one product in microseconds",
    "variant": "family, tile, and what differs from the family's defaults",
    "GFLOP/s": "10^9 floating-point operations a second",
    "of floor": "the least time that the device allows over ours",
    "of bound": "the least time that the device allows over this one's",
    "A/A": "distance of ours from itself, timed as two contenders",
    "err/bound": "largest error over its proven bound; at most 1 is right",
    "x best": "time over the best",
    "x naive": "time of the simplest kernel over this one's",
    **dict.fromkeys(map("x {}".format, TITLES.values()), "its time over ours, round by round: above 1 ours is faster"),
    "spread": "interquartile range over the median",
    "interval": "95% confidence interval of the ratio before it",
    "between": "the ratio before it, with another library's kernel between two products",
    "between us": "added to another library's kernel between two products",
    "eager": "the ratio of single calls from Python",
    "trial": "place in the search",
    "failed": "how, and why",
    "CTAs": "of the grid",
    "waves": "CTAs over those that the device runs at a time",
    "CTAs/SM": "that an SM has room for at a time",
    "occupancy": "warps of an SM at a time over the most there may be",
    "limited by": "what an SM has no more of for another CTA",
    "registers": "of a thread",
    "spills B": "local memory of a thread",
    "threads": "of a CTA",
    "smem KiB": "shared memory of a CTA",
    "PED-ANOVA": "importance for being among the fastest tenth; the shares add up to 100%",
    "fANOVA": "share of the variance of log time explained alone",
    "winner": "its value",
    "best us with each value": "least time of the trials that have the value",
}
"""Explanations of columns, by their headings, which a browser shows where the pointer rests on a heading."""
_WORDS = {
    "variant": 26,
    "failed": 26,
    "best us with each value": 26,
    "what it is": 26,
    "limited by": 0,
    "M x N x K": 0,
    "parameter": 0,
    "winner": 0,
}
"""Headings of the columns of words, and the least width of those whose cells may take several lines."""


def columns_of(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Column]:
    """Columns with these headings and the cells of rows, without those that are empty."""
    columns = (
        Column(heading, cells, left=heading in _WORDS, wraps_at=_WORDS.get(heading, 0))
        for heading, cells in zip(headings, zip(*rows))
    )
    return [column for column in columns if any(column.cells)]


def trials_table(tuning: Tuning) -> tuple[list[Column], int]:
    """Trials, the fastest first, then the failed ones, as many as there is room for, and the number of the others."""
    problem, gpu, fastest = tuning.problem, tuning.gpu, tuning.fastest
    best_us = fastest[0].entry.time_us if fastest else None
    failed = [trial for trial in tuning.trials if not trial.entry.time_us]
    headings = (*_TIME, "GFLOP/s", "x best", "err/bound", "trial", "CTAs", "threads", "smem KiB", "failed")

    def row(trial: Trial) -> tuple[str, ...]:
        entry, config, us = trial.entry, trial.config, trial.entry.time_us
        return (
            figure(us),
            trial.variant,
            figure(us and problem.flops / us / 1e3),
            f"{us / best_us:.3f}" if us and best_us else "",
            "" if entry.error is None else f"{entry.error:.2g}",
            str(trial.number),
            str(config.ctas(problem, gpu.sm_count)) if gpu and config else "",
            str(config.threads) if config else "",
            f"{config.smem_bytes(problem.dtype) / 1024:.3g}" if config else "",
            "" if us else shortened(f"{entry.status}: {entry.reason}" if entry.reason else entry.status),
        )

    last = _fitting(map(row, failed), ROOM_BYTES // 10)
    first = _fitting(map(row, fastest), ROOM_BYTES - sum(map(_bytes, last)))
    return columns_of(headings, (*first, *last)), len(tuning.trials) - len(first) - len(last)


def _fitting(rows: Iterable[tuple[str, ...]], room_bytes: int) -> list[tuple[str, ...]]:
    """The first rows that together take at most `room_bytes`."""
    fitting = []
    for row in rows:
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

    beside: list[Column]
    """Resources of the winner and of the next variants."""
    floors: tuple[tuple[Bound, float], ...]
    """Least times, and their shares of the winner's time."""
    sentences: tuple[str, ...]


def why(tuning: Tuning, gpu: DeviceInfo, config: Config) -> Why:
    """The reasons for the winner. It and the next variants are compiled where there is a compiler for the GPU."""
    problem, us = tuning.problem, tuning.winner[2]
    others = [t for t in tuning.fastest if t.config and t.config != config][:BESIDE]
    shown = [(config, us), *((t.config, t.entry.time_us) for t in others)]
    on_sm = ("CTAs", "waves", "CTAs/SM", "occupancy", "limited by", "registers", "spills B", "threads", "smem KiB")
    rows, taken_by = [], []
    for each, time_us in shown:
        assert each is not None
        binary = compiled(problem, each, gpu)
        taken = resources(problem, each, gpu, binary)
        taken_by.append(taken)
        rows.append(
            (
                figure(time_us),
                str(each),
                str(taken.ctas),
                f"{taken.waves:.2f}",
                str(taken.concurrent),
                f"{taken.occupancy:.0%}",
                taken.limited_by,
                f"{'' if binary else '≤ '}{taken.registers}",
                _UNKNOWN if taken.spill_bytes is None else str(taken.spill_bytes),
                str(taken.threads),
                f"{taken.smem_bytes / 1024:.3g}",
            )
        )
    least = floors(problem, config, gpu)
    sentences = reasons(taken_by[0], least, us, gpu)
    if taken_by[0].spill_bytes is None:
        sentences.append("Registers are what the config predicts at most; spills are known where NVRTC is installed.")
    if tuning.fastest and (best := tuning.fastest[0].entry.time_us) and best < us:
        sentences.append(
            f"The fastest of the trials took {figure(best)} us. A winner is decided by its duel beside the vendor's "
            f"library; of variants within {TIE:.1%} of the fastest there, the first in the family's order wins."
        )
    return Why(columns_of((*_TIME, *on_sm), rows), tuple((floor, floor.us / us) for floor in least), tuple(sentences))


def importance_table(importances: Sequence[Importance], winner: Config) -> list[Column]:
    """Parameters, the most important first."""
    headings = "parameter", "PED-ANOVA", "fANOVA", "winner", "best us with each value", "what it is"
    rows = []
    for each in importances:
        values = ", ".join(f"{value}: {figure(us)}" for value, us in each.best_us)
        shares = f"{each.pedanova:.1%}", "" if each.fanova is None else f"{each.fanova:.1%}"
        won = str(dict(winner.values)[each.name])
        rows.append((each.name, *shares, won, values, each.meaning))
    return columns_of(headings, rows)
