"""Results of a bench as columns of a table, as JSON and as Markdown."""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from ...codegen.problem import Grade, Problem
from ...runtime.check.roofline import LAUNCH_US, Rates, floor_us, rates_of
from ...runtime.check.timing import GRAPH_BELOW_US
from ...runtime.device.protocol import DeviceInfo
from ...runtime.files import write_output
from ...runtime.store.codec import packed
from ..measure.decide import NAIVE, Contender
from ..measure.ratios import NOISY
from .contest import ROUNDS
from .errors import BLOCK
from .kinds import error_kinds_json, kinds_lines, kinds_table
from .rows import COARSER, RATIOS, TITLES, BenchResult, BenchRow, Rival, vendor_title

METHOD = (
    f"Random data in (-1, 1); contenders interleaved in shuffled order in one process, at least {ROUNDS} rounds; "
    "times are medians, ratios the median over the rounds of the rival's time over ours with a 95% confidence "
    "interval by order statistics, above 1 where ours is faster"
)
METHOD_GPU = (
    f"{METHOD}; the device runs 0.3 s before it is timed; inputs rotate over more than 2.5 times the last-level cache "
    f"(`fixed` columns: one set of inputs); products under {GRAPH_BELOW_US:g} us are launched 20 times or more from "
    "one CUDA graph (`eager` columns: one call to its end, no graph, contenders alternate); the device is held back "
    "until a batch is queued; `between` columns: in further batches of the same rounds a short element-wise kernel of "
    "CuPy follows each product, and the median time of that kernel by itself is taken off; "
    "TF32 off, the rivals' workspace allocated once; from sm_90 on our kernels come up while the one before them ends "
    "(programmatic dependent launch); "
    "cuBLASLt with the fastest of up to 16 of its heuristics; split-K reductions and padding copies are in the time"
)
METHOD_TERMS = (
    f"; errors by kinds of data are those of the kernels that were timed, at the row's own size, in units of u = 2^-24 "
    f"by |A||B| and by norms of row and column, the worst of blocks of {BLOCK} x {BLOCK} along the diagonal of C: "
    f"{BLOCK} rows of A and columns of B are drawn and repeated, the reference is computed in double there too; "
    "`hgemm3k` and `bgemm6k` are one cuBLAS product of halves or bfloat16s with sums in float, three or six times as "
    "long along k, and in their time are the kernels that find the largest magnitudes, split the operands and take the "
    "scales off; `tf32` is cuBLAS with TF32, which is coarser than any grade"
)
METHOD_HOST = (
    f"{METHOD}; on the processor, one set of inputs, and NumPy on one thread as kernels run on one core: these times "
    "say nothing about a GPU"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, which is shown where there is room for it."""

    heading: str
    cells: Sequence[str | Text]
    """A cell for each row, empty where nothing was measured."""
    rank: int = 0
    """Rank of the column: 0 is always shown, and lower ranks are shown before higher ones."""
    left: bool = False
    """Whether cells are aligned on the left, as words are, in place of the right, as numbers are."""
    wraps_at: int = 0
    """Least width of cells that may take several lines; 0 for cells that stay on one."""


def save(path: Path, text: str) -> None:
    """Write a text to `path` in one step: a reader sees the old text or the new one. Half of a surrogate pair, as names
    in foreign files may have, becomes an escape. Raises OSError."""
    write_output(path, text.encode(errors="backslashreplace"))


def _rates(result: BenchResult) -> Rates | None:
    """Rates of the device for the accuracy of the first row."""
    return rates_of(result.device, *(row.problem.accuracy for row in result.rows[:1]))


def bench_json(result: BenchResult) -> str:
    """JSON of a run, in which null stands for what was not measured. It always has fields of cuBLAS and cuBLASLt, and
    fields of other rivals where they ran."""
    rates = _rates(result)
    keys = ("cublas", "cublaslt", *(key for key in result.setting.rivals if key not in ("cublas", "cublaslt")))
    document = {
        "device": result.device.name,
        "versions": dict(result.setting.versions),
        "method": method_of(result),
        "date": result.date,
        "missing": list(result.setting.missing),
        **({"coarser": coarser} if (coarser := [key for key in keys if key in COARSER]) else {}),
        "floor_source": rates.source if rates else None,
        "stopped": result.stopped or None,
        **({"wanted": result.wanted} if result.stopped else {}),
        "turn_seconds": result.turn_seconds,
        "rows": [_row_json(row, keys) for row in result.rows],
        **{f"geomean_{RIVAL_NAMES[name].format(key)}": result.geomean(key, name) for key in keys for name in RATIOS},
        "geomean_floor_share": result.geomean_floor,
        **({"geomean_ratio_cublas_used": statistics.geometric_mean(result.used_ratios)} if result.hands_over else {}),
        "rows_left_out": sum(not row.ok for row in result.rows),
        "device_facts": packed(result.device, whole=False),
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


_ROW_NAMES = (
    "ours_us floor_us floor_share error_over_bound eager_us fixed_us between_us between_kernel_us aa_spread rounds "
    "clock_mhz held_back"
).split()
"""Attributes of a row that its JSON has as they are."""
RIVAL_NAMES = {
    "us": "{}_us",
    "ratio": "ratio_{}",
    "between_ratio": "ratio_{}_between",
    "eager_ratio": "ratio_{}_eager",
    "interval": "ratio_{}_interval",
    "between_interval": "ratio_{}_between_interval",
    "tflops": "{}_tflops",
    "error_over_bound": "{}_error_over_bound",
    "eager_us": "{}_eager_us",
    "fixed_us": "{}_fixed_us",
    "between_us": "{}_between_us",
}
"""Names in a row's JSON for the fields of a Rival and its speed, to be completed by its key."""


def _row_json(row: BenchRow, keys: tuple[str, ...]) -> dict[str, Any]:
    problem = row.problem
    document: dict[str, Any] = {
        **{name: getattr(problem, name) for name in "mnk"},
        "dtype": problem.dtype.value,
        "trans": problem.trans,
        **({} if problem.accuracy is Grade.IEEE else {"accuracy": problem.accuracy.value}),
        **({} if problem.batch == 1 else {"batch": problem.batch}),
        "status": row.status.value,
        "reason": row.reason or None,
        **{name: getattr(row, name) for name in _ROW_NAMES},
        "tflops": row.tflops(row.ours_us),
        "config": row.config or None,
        "origin": row.origin or None,
        **({"from": row.taken_from} if row.taken_from else {}),
        **({"used": "cublas"} if row.handed_over else {}),
        "notes": list(row.notes),
    }
    for key in keys:
        rival = row.rival(key)
        fields = {**dataclasses.asdict(rival), "tflops": row.tflops(rival.us)} if rival else {}
        document |= {name.format(key): fields.get(field) for field, name in RIVAL_NAMES.items()}
    return document if problem.accuracy is Grade.IEEE else document | {"error_kinds": error_kinds_json(row)}


def method_of(result: BenchResult) -> str:
    """The method of timing, in words."""
    method = METHOD_HOST if result.device.arch.is_host else METHOD_GPU
    method += METHOD_TERMS if result.graded else ""
    turns = f"; each contender runs {result.turn_seconds:g} s in its turn, the last two thirds of which are a sample"
    turns += ", and no kernel comes in between"
    return method + turns if result.turn_seconds else method


def bench_columns(result: BenchResult) -> list[Column]:
    """Columns with a row for each shape, then the geometric means; a failed shape has its status in place of its
    time."""

    def column(heading: str, cell: Callable[[BenchRow], str | Text], rank: int = 0, mean: str = "") -> Column:
        return Column(heading, [*map(cell, result.rows), mean], rank)

    def aside(key: str) -> int:
        return 2 if graded and key == "cublaslt" else 0

    def ratios(key: str) -> list[Column]:
        back_to_back, between, eager = (figure(result.geomean(key, name)) for name in RATIOS)
        return [
            column(f"x {TITLES[key]}", lambda row: _ratio_or_noise(row, key), aside(key), back_to_back),
            column("interval", lambda row: _interval(row.rival(key)), 4),
            column("between", lambda row: _ratio(row.rival(key), "between_"), 6 if graded else 1, between),
            column("interval", lambda row: _interval(row.rival(key), "between_"), 9),
            column("eager", lambda row: figure(getattr(row.rival(key), "eager_ratio", None)), 8, eager),
        ]

    def errors(key: str) -> Column:
        words = TITLES[key].removesuffix(" (coarser)")
        return column(f"{words} err", lambda row: _error(getattr(row.rival(key), "error_over_bound", None)), beside)

    # Where products need not be `ieee`, errors belong beside speeds: a narrow screen leaves out another ratio instead.
    graded, rivals, beside = result.graded, result.setting.rivals, 1 if result.graded else 7
    own_error = column("err/bound", lambda row: _error(row.error_over_bound), 0 if graded else 7)
    return [
        Column("M x N x K", [*result.names, "geometric mean"], left=True),
        column("us", lambda row: figure(row.ours_us) if row.ok else Text(row.status.value, "yellow")),
        *([own_error] if graded else []),
        column("TFLOP/s", lambda row: figure(row.tflops(row.ours_us)), 5),
        column("of floor", lambda row: _share(row.floor_share), 2, _share(result.geomean_floor)),
        *(each for key in rivals for each in ratios(key)),
        column("A/A", lambda row: _share(row.aa_spread), 6),
        *([] if graded else [own_error]),
        *(errors(key) for key in rivals if key != "cublaslt"),
        *([column("matmul", _used, 3, _mean_used(result))] if result.hands_over else []),
        Column("config from", [*map(_origin, result.rows), ""], 3, left=True, wraps_at=12),
    ]


def figure(value: float | None) -> str:
    """A number with four digits, or with all digits before the point; empty for None."""
    if value is None:
        return ""
    if value <= 0:
        return "0"
    if not value < 1e12:  # only a damaged file has such a number, perhaps infinite or NaN
        return f"{value:.3g}"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def interval_text(interval: tuple[float, float] | None) -> str:
    """The ends of an interval of ratios; empty for None."""
    return "..".join(map(figure, interval or ()))


def contender_columns(problem: Problem, contenders: Sequence[Contender], info: DeviceInfo | None) -> list[Column]:
    """Columns with a row for each contender of a duel, the last one with the variants; `info` is None for a device
    without facts."""
    vendor, least_us = vendor_title(info), floor_us(info, problem) if info else None
    naive_us = next((each.measurement.median_us for each in contenders if each.config == NAIVE), None)

    def column(heading: str, cell: Callable[[Contender, float], str], rank: int = 0) -> Column:
        return Column(heading, [cell(each, each.measurement.median_us) for each in contenders], rank)

    return [
        column("us", lambda each, us: figure(us)),
        column("spread", lambda each, us: _share(each.measurement.spread_us / us), 5),
        column("GFLOP/s", lambda each, us: figure(problem.flops / us / 1e3)),
        column("of bound", lambda each, us: _share(least_us and least_us / us), 1),
        # Kernels differ in accuracy unless it is `ieee`: each speed needs its error beside it.
        column("err/bound", lambda each, us: _error(each.accuracy.worst), 6 if problem.accuracy is Grade.IEEE else 0),
        column("x naive", lambda each, us: figure(naive_us and naive_us / us), 4),
        column(f"x {vendor}", lambda each, us: figure(each.ratio_vendor) if each.config else "1"),
        column("interval", lambda each, us: interval_text(each.interval if each.config else None), 2),
        column("between", lambda each, us: figure(each.between_ratio) if each.config else "", 3),
        column("between us", lambda each, us: figure(each.between_us), 7),
        Column("variant", [str(each.config or vendor) for each in contenders], left=True, wraps_at=26),
    ]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _used(row: BenchRow) -> str:
    """The library whose product `matmul` takes, or `ours`; empty where cuBLAS did not run."""
    return "" if row.rival("cublas") is None else TITLES["cublas"] if row.handed_over else "ours"


def _mean_used(result: BenchResult) -> str:
    return figure(statistics.geometric_mean(result.used_ratios))


def _origin(row: BenchRow) -> str:
    return f"{row.origin} (from {row.taken_from})" if row.taken_from else row.origin


def _ratio(rival: Rival | None, kind: str = "") -> str | Text:
    within: tuple[float, float] | None = getattr(rival, f"{kind}interval", None)
    if within is None:
        return ""
    return Text(figure(getattr(rival, f"{kind}ratio")), "green" if within[0] > 1 else "red" if within[1] < 1 else "")


def _ratio_or_noise(row: BenchRow, key: str) -> str | Text:
    return Text("too noisy", "yellow") if row.noisy and row.rival(key) else _ratio(row.rival(key))


def _interval(rival: Rival | None, kind: str = "") -> str:
    return interval_text(getattr(rival, f"{kind}interval", None))


def bench_closing(result: BenchResult) -> list[str]:
    """Lines below a table of a bench: geometric means of all ratios, failures, notes and limits of the device."""
    lines = []
    for key in result.setting.rivals:
        means = [f"{figure(mean)} {words}" for name, words in RATIOS.items() if (mean := result.geomean(key, name))]
        lines += [f"geometric means, {TITLES[key]}: {', '.join(means)}"] if means else []
    if result.hands_over:
        figures = f"{_mean_used(result)} x cuBLAS in the mean, {figure(min(result.used_ratios))} at least"
        lines.append(
            f"matmul takes cuBLAS itself for {result.hands_over} of {len(result.used_ratios)} shapes: {figures}"
        )
    named = list(zip(result.names, result.rows, strict=True))
    lines += [f"{name}: {row.status.value}, {row.reason}" for name, row in named if not row.ok]
    names_of: dict[str, list[str]] = {}
    for name, row in named:
        for note in row.notes:
            names_of.setdefault(note, []).append(name)
    for note, names in names_of.items():
        lines.append(f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {note}")
    done = [row for row in result.rows if row.ok]
    if failed := len(result.rows) - len(done):
        lines.append(f"{failed} of {len(result.rows)} rows failed and are left out of the geometric mean")
    if noisy := [name for name, row in named if row.noisy]:
        longer = "" if result.turn_seconds else ", or in longer turns (--turns 0.5)"
        remedy = f"no ratio is kept; measure with nothing else running{longer}"
        lines.append(f"too noisy, a kernel over {NOISY:.0%} from itself (A/A): {', '.join(noisy)}; {remedy}")
    quiet = [row for row in done if not row.noisy]
    for key in result.setting.rivals:
        if (count := sum(row.rival(key) is not None for row in quiet)) < len(quiet):
            rows = f"{count} of {len(quiet)} rows"
            lines.append(f"the geometric mean of {TITLES[key]} is over the {rows} in which it ran")
        between = sum(rival.between_ratio is not None for rival in result.compared(key))
        if 0 < between < count:
            lines.append(f"{TITLES[key]} with a kernel in between: {between} of {count} rows, the others are too short")
    lines += [*_errors_line(result), *kinds_lines(result)] if result.graded else []
    if result.worst_aa is not None:
        lines.append(f"A/A, a kernel against itself in the same rounds: within {result.worst_aa:.1%} of 1 in every row")
    held = [f"{name} {row.clock_mhz:.0f} MHz" for name, row in named if row.held_back]
    if held:
        owner = "each at its own" if result.turn_seconds else "all at one, --turns 0.5 for their own"
        lines.append(f"clocks held back for power or heat, {owner}: {', '.join(held)}")
    rates = _rates(result)
    if rates and result.rows:
        dtypes = dict.fromkeys(row.problem.dtype for row in result.rows)
        highs = " and ".join(f"{rates.gflops(dtype) / 1e3:.1f}" for dtype in dtypes)
        floor = f"{highs} TFLOP/s, {rates.bandwidth_gbs / 1e3:.2f} TB/s and {LAUNCH_US} us a launch"
        lines.append(f"floor: {floor} ({rates.source})")
    lines += result.setting.missing
    if result.stopped:
        lines.append(f"{len(result.rows)} of {result.wanted} shapes; ended by {result.stopped}")
    return lines


def _errors_line(result: BenchResult) -> list[str]:
    """A line with the largest errors of all rows over the bounds of their accuracy."""
    errors = {"ours": [row.error_over_bound for row in result.rows if row.ok]}
    for key in result.setting.rivals:
        errors[TITLES[key]] = [rival.error_over_bound for rival in result.compared(key)]
    worst = ((name, max(finite)) for name, each in errors.items() if (finite := [e for e in each if e is not None]))
    words = ", ".join(f"{name} {error:.2g}" for name, error in worst)
    return [f"largest errors over their bounds, random data: {words}"] if words else []


def bench_markdown(result: BenchResult) -> str:
    """A Markdown document of a bench: every column, times, configs, versions and method."""
    columns = bench_columns(result)
    *rows, means = zip(*(map(str, column.cells) for column in columns), strict=True)
    rows.append(tuple(f"**{cell}**" if cell else "" for cell in means))
    lines = [f"# tilewright on {result.device.name}", "", f"{result.date}. {method_of(result)}.", ""]
    lines += _markdown_table([column.heading for column in columns], rows)
    lines += ["", *(f"- {_escaped(line)}" for line in bench_closing(result)), "", "## Times in microseconds", ""]
    names = ("ours", *map(TITLES.get, result.setting.rivals))
    kinds = [f"{name}{kind}" for name in names for kind in ("", " between", " eager", " fixed")]
    times = [_times(name, row, result.setting.rivals) for name, row in zip(result.names, result.rows) if row.ok]
    lines += _markdown_table(["M x N x K", "floor", *kinds, "config"], times)
    if errors := kinds_table(result):
        lines += ["", "## Errors by kind of data, in units of u", "", *_markdown_table(errors[0], errors[1:])]
    lines += ["", "## Versions", "", *(f"- {name}: {value}" for name, value in result.setting.versions)]
    return "\n".join(lines) + "\n"


def _times(name: str, row: BenchRow, keys: tuple[str, ...]) -> Sequence[str]:
    times = [row.floor_us, row.ours_us, row.between_us, row.eager_us, row.fixed_us]
    for rival in map(row.rival, keys):
        times += (rival.us, rival.between_us, rival.eager_us, rival.fixed_us) if rival else (None,) * 4
    return [name, *map(figure, times), f"`{row.config}`"]


def _markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(headings) - 2), "---"]
    return [f"| {' | '.join(map(_escaped, cells))} |" for cells in (headings, rule, *rows)]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
