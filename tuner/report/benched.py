"""The part of a page that tells of one bench: figures, charts and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..bench.report import bench_closing, bench_columns, figure, method_of
from ..bench.rows import RATIOS, TITLES, BenchResult, BenchRow
from .charts import INK, MUTED, SERIES, Chart, chart, legend, plain_ticks
from .tables import Head, Table

_HINTS = {
    "us": "median time of ours",
    "of floor": "the least time that the device allows over ours",
    "A/A": "how far ours is from itself, timed as two contenders",
    "err/bound": "largest error over its proven bound; at most 1 is right",
    "between": "the ratio before it, with another library's kernel between two products",
    "eager": "the ratio of single calls from Python",
    "interval": "95% confidence interval of the ratio before it",
}
_SHAPES, _HEIGHT = ("o", "D", "s"), 0.62


@dataclass(frozen=True, slots=True)
class Benched:
    """One run, ready for the page."""

    title: str
    figures: tuple[tuple[str, str, str], ...]
    """Value, what it is, and more on it."""
    charts: tuple[Chart, ...]
    table: Table
    means: tuple[str, ...]
    """The last row of the table: geometric means."""
    configs: Table
    closing: tuple[str, ...]
    method: str
    versions: tuple[tuple[str, str], ...]


def benched(result: BenchResult, name: str) -> Benched:
    """A run as figures, charts and tables; `name` begins the names within its charts."""
    columns = bench_columns(result)
    *rows, means = zip(*(map(str, column.cells) for column in columns), strict=True)
    heads = tuple(Head(c.heading, _HINTS.get(c.heading, ""), c.left) for c in columns)
    figures = []
    for key in result.setting.rivals:
        ratios = [rival.ratio for rival in result.compared(key) if rival.ratio]
        across = f"from {figure(min(ratios))} to {figure(max(ratios))}" if ratios else ""
        more = [
            f"{figure(mean)} {words}" for kind, words in [*RATIOS.items()][1:] if (mean := result.geomean(key, kind))
        ]
        mean = result.geomean(key)
        if mean is not None:
            figures.append((figure(mean), f"x {TITLES[key]}, geometric mean", "; ".join([across, *more])))
    if result.geomean_floor is not None:
        figures.append((f"{result.geomean_floor:.1%}", "of the device's limit, geometric mean", ""))
    worst = max((row.error_over_bound or 0.0 for row in result.rows if row.ok), default=0.0)
    figures.append((f"{worst:.2g}", "largest error over its proven bound", "at most 1 is right"))
    done = [row for row in result.rows if row.ok]
    dtypes = ", ".join(dict.fromkeys(row.problem.dtype.value for row in result.rows))
    charts = (_ratios(result, done, name), _speeds(result, done, name)) if done else ()
    variants = tuple((row.problem.shape, figure(row.ours_us), row.config) for row in done)
    return Benched(
        title=f"{dtypes} on {result.device.name}, {result.date[:10]}",
        figures=tuple(figures),
        charts=charts,
        table=Table(heads, tuple(rows)),
        means=means,
        configs=Table((Head("M x N x K", left=True), Head("us"), Head("variant", left=True, wraps=True)), variants),
        closing=tuple(bench_closing(result)),
        method=method_of(result),
        versions=result.setting.versions,
    )


def _labelled(axes: Any, rows: Sequence[BenchRow]) -> None:
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [row.problem.shape for row in rows])


def _limits(values: Sequence[float]) -> tuple[float, float]:
    return min(values) / 1.15, max(values) * 1.15


def _ratios(result: BenchResult, rows: Sequence[BenchRow], name: str) -> Chart:
    """A mark for each shape and rival with its interval, hollow with a kernel in between."""
    marks = []
    for place, key in enumerate(result.setting.rivals):
        found = [(y, rival) for y, row in enumerate(rows) if (rival := row.rival(key))]
        ratios = [(y, r.ratio, r.interval) for y, r in found if r.ratio and r.interval]
        marks += [(place, key, "", ratios)] if ratios else []
        beside = [(y, r.between_ratio, r.between_interval) for y, r in found if r.between_ratio and r.between_interval]
        marks += [(place, key, ", a kernel between", beside)] if beside else []
    ends = [end for *_, found in marks for _, _, within in found for end in within]
    low, high = _limits([1.0, *ends])

    def draw(axes: Any, narrow: bool) -> None:
        axes.set(xscale="log", xlim=(low, high))
        near = (1, 1.5, 2, 3, 5) if narrow else (1, 1.1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 8, 9)
        plain_ticks(axes.xaxis, low, high, near if high < 8 * low else (1, 2, 5))
        for number, (place, key, words, found) in enumerate(marks):
            shift = ((number + 0.5) / len(marks) - 0.5) * _HEIGHT
            ys, xs, within = zip(*found)
            below = [max(0.0, x - low_end) for x, (low_end, _) in zip(xs, within)]
            above = [max(0.0, high_end - x) for x, (_, high_end) in zip(xs, within)]
            axes.errorbar(
                xs,
                [y + shift for y in ys],
                xerr=(below, above),
                fmt=_SHAPES[place % 3],
                markersize=5,
                color=SERIES[(place + 1) % len(SERIES)],
                markerfacecolor="none" if words else SERIES[(place + 1) % len(SERIES)],
                elinewidth=1,
                label=TITLES[key] + words,
                zorder=3,
            )
        axes.axvline(1.0, color=INK, linewidth=1.2, zorder=2)
        _labelled(axes, rows)
        axes.set_xlabel("their time over ours" if narrow else "their time over ours: above 1 is ours faster")
        if marks:
            legend(axes, 1 if narrow else 4)

    return chart(
        f"{name}-ratio",
        "Ratio to other libraries by shape, with 95% intervals",
        draw,
        len(rows) + max(0, len(marks) - 3),
    )


def _speeds(result: BenchResult, rows: Sequence[BenchRow], name: str) -> Chart:
    """A mark for each shape and library, and the device's limit."""
    names = ("ours", *result.setting.rivals)
    speeds = {
        key: [(y, tflops) for y, row in enumerate(rows) if (tflops := row.tflops(row.us_of(key)))] for key in names
    }
    limits = [(y, tflops) for y, row in enumerate(rows) if (tflops := row.tflops(row.floor_us))]
    low, high = _limits([tflops for found in (*speeds.values(), limits) for _, tflops in found])

    def draw(axes: Any, narrow: bool) -> None:
        axes.set(xscale="log", xlim=(low, high))
        plain_ticks(axes.xaxis, low, high, (1,) if narrow else (1, 2, 5))
        for place, (key, found) in enumerate(speeds.items()):
            shift = (place - (len(names) - 1) / 2) * 0.22
            ys, xs = zip(*((y + shift, x) for y, x in found)) if found else ((), ())
            shape = "*" if key == "ours" else _SHAPES[(place - 1) % 3]
            size = 9 if key == "ours" else 5
            style = {"markersize": size, "markeredgewidth": 0, "color": SERIES[place % len(SERIES)], "zorder": 3}
            axes.plot(xs, ys, shape, label=TITLES.get(key, "tilewright"), **style)
        if limits:
            ys, xs = zip(*limits)
            axes.plot(xs, ys, "|", markersize=14, markeredgewidth=2, color=MUTED, label="the device's limit", zorder=2)
        _labelled(axes, rows)
        axes.set_xlabel("TFLOP/s")
        legend(axes, 2 if narrow else 4)

    return chart(f"{name}-speed", "Speed by shape", draw, len(rows))
