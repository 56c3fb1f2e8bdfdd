"""Tables of a page, whose cells are text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import escape

from ...codegen.config import Config
from ...runtime.check.roofline import Bound
from ...runtime.device.protocol import DeviceInfo
from ..bench.report import Column, figure
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
_WRAPPED = "variant", "failed", "best us with each value", "what it is"
"""Headings of the columns whose cells may take several lines."""
_WORDS = *_WRAPPED, "limited by", "M x N x K", "parameter", "winner"
"""Headings of the columns of words."""


def columns_of(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Column]:
    """Columns with these headings and the cells of rows, without empty columns."""
    columns = (
        Column(heading, cells, left=heading in _WORDS, wraps_at=int(heading in _WRAPPED))
        for heading, cells in zip(headings, zip(*rows))
    )
    return [column for column in columns if any(column.cells)]


def trials_table(tuning: Tuning) -> tuple[list[Column], int]:
    """Columns of the trials that fit, the fastest first and failed ones last, and the number of the other trials."""
    problem, gpu, fastest = tuning.problem, tuning.gpu, tuning.fastest
    best_us = fastest[0].entry.time_us if fastest else None
    failed = [trial for trial in tuning.trials if not trial.entry.time_us]
    headings = (*_TIME, "GFLOP/s", "x best", "err/bound", "trial", "CTAs", "threads", "smem KiB", "failed")

    def row(trial: Trial) -> tuple[str, ...]:
        entry, config, us = trial.entry, trial.config, trial.entry.time_us
        launch = config.launch_config(problem, gpu.sm_count if gpu else 1) if config else None
        return (
            figure(us),
            trial.variant,
            figure(us and problem.flops / us / 1e3),
            f"{us / best_us:.3f}" if us and best_us else "",
            "" if entry.error is None else f"{entry.error:.2g}",
            str(trial.number),
            str(launch.ctas) if launch and gpu else "",
            str(launch.threads) if launch else "",
            f"{launch.smem_bytes / 1024:.3g}" if launch else "",
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
