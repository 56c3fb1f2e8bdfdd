"""Part of a page on one bench: figures, charts and tables."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..bench.plot import draw_ratios, draw_speeds, lines_of
from ..bench.report import Column, bench_closing, bench_columns, figure, method_of
from ..bench.rows import GIVEN, RATIOS, TITLES, BenchResult
from ..bench.suites import suite_names, suite_problems
from ..result import kind_options
from .charts import Chart, chart
from .tables import columns_of
from .tuning import stamp


@dataclass(frozen=True, slots=True)
class Benched:
    """A run's figures, charts and tables."""

    title: str
    figures: tuple[tuple[str, str, str], ...]
    """Value, caption and remark of each figure."""
    charts: tuple[Chart, ...]
    table: list[Column]
    means: tuple[str, ...]
    """Geometric means, the last row of the table."""
    configs: list[Column]
    closing: tuple[str, ...]
    method: str
    stamp: str
    """Date and versions."""
    commands: tuple[tuple[str, str], ...]
    """Commands that measure the rows again, each after its purpose."""


def benched(result: BenchResult, path: Path, name: str) -> Benched:
    """Figures, charts and tables of a run in a file; `name` begins the names within its charts."""
    columns = bench_columns(result)
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
    variants = [(row.problem.title, figure(row.ours_us), row.config) for row in done]
    return Benched(
        title=f"{dtypes} on {result.device.name}, {result.date[:10]}",
        figures=tuple(figures),
        charts=charts,
        table=[replace(column, cells=column.cells[:-1]) for column in columns],
        means=tuple(str(column.cells[-1]) for column in columns),
        configs=columns_of(("M x N x K", "us", "variant"), variants),
        closing=tuple(bench_closing(result)),
        method=method_of(result),
        stamp=stamp((("date", result.date), *result.setting.versions)).removeprefix("; "),
        commands=tuple((f"measure {dtypes} again", command) for command in commands_of(result, path)),
    )


def commands_of(result: BenchResult, path: Path) -> Iterator[str]:
    """Commands that measure the rows again into a file: one for a suite that ships, else one for each type, transposes
    and accuracy."""
    problems = tuple(dict.fromkeys(row.problem for row in result.rows))
    configs = dict.fromkeys(row.config for row in result.rows if row.origin == GIVEN)
    first = problems[0]
    kind = first.dtype, first.trans, first.accuracy, first.batch
    suites = (suite for suite in suite_names() if suite_problems(suite, *kind) == problems)
    suite = next(suites, "")
    groups = {"" if suite else problem.kind: problem for problem in problems}
    for group, problem in groups.items():
        shapes = [word for each in problems if each.kind == group for word in ("--shape", each.shape)]
        words = [*(["--suite", suite] if suite else shapes), *kind_options(problem)]
        words += [word for config in configs for word in ("--config", config)]
        words += ["--turns", f"{result.turn_seconds:g}"] if result.turn_seconds else []
        words += ["--device", "host"] if result.device.arch.is_host else []
        yield shlex.join(["tilewright", "bench", *words, "--json", str(path)])
