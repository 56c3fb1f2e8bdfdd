"""What `bench` found as a table, JSON and Markdown."""

import json
import math
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ...codegen.problem import Problem
from ...runtime.check.roofline import LAUNCH_US, rates_of
from ...runtime.check.timing import GRAPH_BELOW_US
from ...runtime.files import write_whole
from ..measure.worker import pack_info
from .contest import ROUNDS
from .rows import TITLES, BenchResult, BenchRow, Rival
from .run import BenchProgress

__all__ = ["JsonKept", "bench_closing", "bench_json", "bench_markdown", "bench_table", "columns", "save"]

WIDE = 149
"""Columns that the whole table takes."""
METHOD = (
    f"Random data in (-1, 1); contenders interleaved in shuffled order in one process, at least {ROUNDS} rounds; "
    "times are medians, ratios the median over the rounds of the rival's time over ours with a 95% confidence "
    "interval by order statistics, above 1 where ours is faster"
)
METHOD_GPU = (
    f"{METHOD}; the device runs 0.3 s before it is timed; inputs rotate over more than 2.5 times the last-level cache "
    f"(`fixed` columns: one set of inputs); products under {GRAPH_BELOW_US:g} us are launched 20 times or more from "
    "one CUDA graph (`eager` columns: one call to its end, no graph); the device is held back until a batch is queued; "
    "TF32 off, the rivals' workspace allocated once; from sm_90 on our kernels come up while the one before them ends "
    "(programmatic dependent launch); "
    "cuBLASLt with the fastest of up to 16 of its heuristics; split-K reductions and padding copies are in the time"
)
METHOD_HOST = METHOD + "; on the processor, one set of inputs: these times say nothing about a GPU"


def columns(result: BenchResult) -> tuple[str, ...]:
    """Words for the rivals in the order of their columns: cuBLAS and cuBLASLt always, others where they ran."""
    return ("cublas", "cublaslt", *(key for key in result.setting.rivals if key not in ("cublas", "cublaslt")))


def save(path: Path, text: str) -> None:
    """Put a text at `path` in one step: a reader sees the old one or the new one. Raises OSError."""
    write_whole(path.resolve(), text.encode())


class JsonKept:
    """A BenchProgress that writes the run so far after each shape, then tells another."""

    def __init__(self, then: BenchProgress, path: Path | None) -> None:
        self._then, self._path = then, path

    def opened(self, result: BenchResult) -> None:
        """Before the first shape."""
        self._then.opened(result)

    def begun(self, problem: Problem) -> None:
        """Before each shape."""
        self._then.begun(problem)

    def measured(self, result: BenchResult) -> None:
        """After each shape. Raises OSError."""
        if self._path:
            save(self._path, bench_json(result))
        self._then.measured(result)


def bench_json(result: BenchResult) -> str:
    """The whole run; what was not measured is null."""
    rates = rates_of(result.device)
    means = {f"geomean_ratio_{key}": result.geomean(key) for key in columns(result)}
    document = {
        "device": result.device.name,
        "versions": dict(result.setting.versions),
        "method": _method(result),
        "date": result.date,
        "missing": list(result.setting.missing),
        "floor_source": rates.source if rates else None,
        "stopped": result.stopped or None,
        "turn_seconds": result.turn_seconds,
        "rows": [_row_json(row, columns(result)) for row in result.rows],
        **means,
        "geomean_floor_share": result.geomean_floor,
        "rows_left_out": _left_out(result),
        "device_facts": pack_info(result.device),
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _row_json(row: BenchRow, keys: tuple[str, ...]) -> dict[str, Any]:
    problem = row.problem
    found: dict[str, Any] = {
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "dtype": problem.dtype.value,
        "trans": problem.trans,
        "status": row.status.value,
        "reason": row.reason or None,
        "ours_us": row.ours_us,
        "floor_us": row.floor_us,
        "floor_share": row.floor_share,
        "tflops": row.tflops(row.ours_us),
        "error_over_bound": row.error_over_bound,
        "config": row.config or None,
        "origin": row.origin or None,
        "eager_us": row.eager_us,
        "fixed_us": row.fixed_us,
        "aa_spread": row.aa_spread,
        "rounds": row.rounds,
        "clock_mhz": row.clock_mhz,
        "held_back": row.held_back,
        "notes": list(row.notes),
    }
    for key in keys:
        rival = row.rival(key)
        found |= {
            f"{key}_us": rival and rival.us,
            f"ratio_{key}": rival and rival.ratio,
            f"ratio_{key}_interval": rival and rival.interval,
            f"{key}_tflops": rival and row.tflops(rival.us),
            f"{key}_error_over_bound": rival and rival.error_over_bound,
            f"{key}_eager_us": rival and rival.eager_us,
            f"{key}_fixed_us": rival and rival.fixed_us,
        }
    return found


def _method(result: BenchResult) -> str:
    method = METHOD_HOST if result.device.arch.is_host else METHOD_GPU
    turns = f"; each contender runs {result.turn_seconds:g} s in its turn, the last two thirds of which are a sample"
    return method + turns if result.turn_seconds else method


def _left_out(result: BenchResult) -> int:
    return sum(not row.ok for row in result.rows)


def bench_table(result: BenchResult, width: int = WIDE) -> Table:
    """A row a shape, the geometric mean last; where there is little room, without the intervals."""
    dtype = result.rows[0].problem.dtype.value if result.rows else ""
    table = Table(title=Text(f"{dtype} on {result.device.name}", style="table.title"), title_justify="left")
    table.add_column("M x N x K", no_wrap=True)
    for heading in _headings(result):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("config from", overflow="fold")
    for row in result.rows:
        if row.ok:
            cells = [Text(cell) for cell in _cells(result, row)]
            for place, rival in enumerate(_rivals(result, row)):
                if rival:
                    low, high = rival.interval
                    if width < WIDE:
                        cells[_FIGURES + place] = Text(f"{rival.ratio:.3f}")
                    cells[_FIGURES + place].stylize("green" if low > 1 else "red" if high < 1 else "")
            table.add_row(row.problem.shape, *cells, row.origin)
        else:
            blank = [""] * (len(_headings(result)) - 1)
            table.add_row(row.problem.shape, Text(row.status.value, style="yellow"), *blank, row.origin)
    table.add_section()
    table.add_row("geometric mean", *_mean_cells(result), "", style="bold")
    return table


_FIGURES = 3  # columns of ours before the rivals'


def _headings(result: BenchResult) -> list[str]:
    timed = [f"x {TITLES[key]}" for key in _shown(result)]
    errors = [f"{TITLES[key]} err" for key in _shown(result) if key != "cublaslt"]
    return ["us", "TFLOP/s", "of floor", *timed, "A/A", "err/bound", *errors]


def _shown(result: BenchResult) -> tuple[str, ...]:
    """Rivals that have anything to show."""
    return tuple(key for key in columns(result) if key in result.setting.rivals)


def _rivals(result: BenchResult, row: BenchRow) -> list[Rival | None]:
    return [row.rival(key) for key in _shown(result)]


def _cells(result: BenchResult, row: BenchRow) -> list[str]:
    rivals = dict(zip(_shown(result), _rivals(result, row), strict=True))
    return [
        _figure(row.ours_us),
        _figure(row.tflops(row.ours_us)),
        _share(row.floor_share),
        *(_ratio(rival) for rival in rivals.values()),
        _share(row.aa_spread),
        _error(row.error_over_bound),
        *(_error(rival.error_over_bound if rival else None) for key, rival in rivals.items() if key != "cublaslt"),
    ]


def _mean_cells(result: BenchResult) -> list[str]:
    means = [f"{mean:.3f}" if (mean := result.geomean(key)) else "" for key in _shown(result)]
    blank = [""] * (len(_headings(result)) - _FIGURES - len(means))
    return ["", "", _share(result.geomean_floor), *means, *blank]


def _figure(value: float | None) -> str:
    """Four digits, or all of those before the point."""
    if value is None:
        return ""
    if value <= 0:
        return "0"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _ratio(rival: Rival | None) -> str:
    return f"{rival.ratio:.3f} ({rival.interval[0]:.3f}..{rival.interval[1]:.3f})" if rival else ""


def bench_closing(result: BenchResult) -> list[str]:
    """What the table leaves open, a line each."""
    lines = [f"{row.problem.shape}: {row.status.value}, {row.reason}" for row in result.rows if not row.ok]
    lines += [f"{row.problem.shape}: {note}" for row in result.rows for note in row.notes]
    if left := _left_out(result):
        lines.append(f"{left} of {len(result.rows)} rows failed and are left out of the geometric mean")
    done = len(result.rows) - left
    for key in _shown(result):
        if (count := len(result.compared(key))) < done:
            lines.append(f"the geometric mean of {TITLES[key]} is over the {count} of {done} rows in which it ran")
    if result.worst_aa is not None:
        lines.append(f"A/A, a kernel against itself in the same rounds: within {result.worst_aa:.1%} of 1 in every row")
    held = [row for row in result.rows if row.held_back]
    if held:
        whose = "each at its own" if result.turn_seconds else "all at one, --turns 0.5 for their own"
        lines.append(f"clocks held back for power or heat, {whose}: {_clocks(held)}")
    rates = rates_of(result.device)
    if rates and result.rows:
        high = rates.float_gflops if result.rows[0].problem.dtype.value == "float" else rates.double_gflops
        floor = f"{high / 1e3:.1f} TFLOP/s, {rates.bandwidth_gbs / 1e3:.2f} TB/s and {LAUNCH_US} us a launch"
        lines.append(f"floor: {floor} ({rates.source})")
    lines += result.setting.missing
    if result.stopped:
        lines.append(f"{len(result.rows)} of {result.wanted} shapes; ended by {result.stopped}")
    return lines


def _clocks(rows: list[BenchRow]) -> str:
    return ", ".join(f"{row.problem.shape} {row.clock_mhz:.0f} MHz" for row in rows)


def bench_markdown(result: BenchResult) -> str:
    """The same as a Markdown document: table, configs, versions and method."""
    lines = [f"# tilewright on {result.device.name}", "", f"{result.date}. {_method(result)}.", ""]
    lines += _markdown_table(result)
    lines += ["", *(f"- {_escaped(line)}" for line in bench_closing(result)), "", "## Times in microseconds", ""]
    keys = _shown(result)
    kinds = ("", " eager", " fixed")
    headings = ["M x N x K", "floor", *(f"{name}{kind}" for name in ("ours", *map(TITLES.get, keys)) for kind in kinds)]
    lines += _lines([*headings, "config"], [_times(row, keys) for row in result.rows if row.ok])
    lines += ["", "## Versions", "", *(f"- {name}: {value}" for name, value in result.setting.versions)]
    return "\n".join(lines) + "\n"


def _markdown_table(result: BenchResult) -> list[str]:
    body = []
    for row in result.rows:
        blank = [""] * (len(_headings(result)) - 1)
        cells = _cells(result, row) if row.ok else [row.status.value, *blank]
        body.append([row.problem.shape, *cells, row.origin])
    body.append(["**geometric mean**", *(f"**{cell}**" if cell else "" for cell in _mean_cells(result)), ""])
    return _lines(["M x N x K", *_headings(result), "config from"], body)


def _times(row: BenchRow, keys: tuple[str, ...]) -> list[str]:
    cells = [row.problem.shape, _figure(row.floor_us)]
    cells += [_figure(us) for us in (row.ours_us, row.eager_us, row.fixed_us)]
    for key in keys:
        rival = row.rival(key)
        cells += [_figure(us) for us in ((rival.us, rival.eager_us, rival.fixed_us) if rival else (None,) * 3)]
    return [*cells, f"`{row.config}`"]


def _lines(headings: list[str], body: list[list[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(headings) - 2), "---"]
    return [f"| {' | '.join(map(_escaped, cells))} |" for cells in (headings, rule, *body)]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
