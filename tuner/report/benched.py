"""Part of a page on one bench: figures, charts and tables."""

from dataclasses import dataclass
from functools import partial

from ..bench.plot import draw_ratios, draw_speeds, lines_of
from ..bench.report import bench_closing, bench_columns, figure, method_of
from ..bench.rows import RATIOS, TITLES, BenchResult
from .charts import Chart, chart
from .tables import Head, Table

_HINTS = {
    "us": "median time of ours",
    "of floor": "the least time that the device allows over ours",
    "A/A": "distance of ours from itself, timed as two contenders",
    "err/bound": "largest error over its proven bound; at most 1 is right",
    "between": "the ratio before it, with another library's kernel between two products",
    "eager": "the ratio of single calls from Python",
    "interval": "95% confidence interval of the ratio before it",
}


@dataclass(frozen=True, slots=True)
class Benched:
    """A run's figures, charts and tables."""

    title: str
    figures: tuple[tuple[str, str, str], ...]
    """Value, caption and remark of each figure."""
    charts: tuple[Chart, ...]
    table: Table
    means: tuple[str, ...]
    """Geometric means, the last row of the table."""
    configs: Table
    closing: tuple[str, ...]
    method: str
    versions: tuple[tuple[str, str], ...]


def benched(result: BenchResult, name: str) -> Benched:
    """Figures, charts and tables of a run; `name` begins the names within its charts."""
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
    drawings = (
        ("ratio", "Ratio to other libraries by shape, with 95% intervals", draw_ratios),
        ("speed", "Speed by shape", draw_speeds),
    )
    charts = tuple(
        chart(f"{name}-{kind}", title, partial(draw, result), lines_of(result))
        for kind, title, draw in drawings
        if done
    )
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
