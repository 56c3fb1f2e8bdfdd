"""Page of a tuning or of benches, from a template: one file that loads nothing from elsewhere."""

import shlex
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ...codegen.config import Config
from ...codegen.errors import TilewrightError
from ...codegen.render import render
from ...runtime.check.roofline import bounds_of, rates_of
from ...runtime.device.known import KNOWN
from ..bench.plot import check_matplotlib
from ..bench.report import Column, contender_columns, figure
from ..bench.rows import BenchResult, vendor_title
from ..result import load_command, options_of
from ..settings import EFFORTS
from .benched import benched
from .charts import Chart
from .counters import Counters
from .drawn import roofline, search
from .importance import importances
from .tables import importance_table, trials_table, why
from .tuning import Tuning, shortened

_LIMITS = {"arithmetic": "its arithmetic", "memory": "moving each matrix once", "launch": "its launch"}
"""Words for the bounds of a device."""


@cache
def _environment() -> Environment:
    package, _, folder = __package__.partition(".")
    loader = PackageLoader(package, folder.replace(".", "/"))
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["markup"] = _markup
    environment.filters["breakable"] = _breakable
    environment.filters["rows"] = _rows
    return environment


def _markup(chart: Chart) -> list[tuple[str, Markup]]:
    """Width and SVG of a chart, as markup: the text in it is escaped."""
    return [(width, Markup(svg)) for width, svg in chart.svgs]


def _rows(columns: Sequence[Column]) -> list[list[tuple[Column, str]]]:
    """The cells of each row, each with its column."""
    return [list(zip(columns, map(str, cells))) for cells in zip(*(column.cells for column in columns))]


def _breakable(text: str) -> Markup:
    """A text that a browser may break after any comma."""
    return Markup(",<wbr>").join(text.split(","))


def tuning_page(tuning: Tuning, again: str, counters: Counters | None = None, missing: str = "") -> str:
    """The page of a tuning; `again` is the command that makes it. `counters` are names, values and units of Nsight
    Compute by section, `missing` says why there are none. Raises DeviceError without matplotlib."""
    check_matplotlib("a report")
    problem, gpu = tuning.problem, tuning.gpu
    config, variant, us = tuning.winner
    trials, left_out = trials_table(tuning)
    rates = rates_of(gpu, problem.accuracy) if gpu else None
    own = [(t.config, t.entry.time_us) for t in tuning.fastest if t.config and type(t.config) is type(config)]
    important = importances([(each, time) for each, time in own if time]) if config else ()
    values: dict[str, Any] = {
        "kind": "tuning",
        "title": f"{problem} on {tuning.device}",
        "variant": variant,
        "family": config.title if config else "",
        "shown": _figures(tuning, us),
        "why": why(tuning, gpu, config) if gpu and config else None,
        "rates": rates,
        "roofline": roofline(tuning, gpu, rates) if gpu and rates else None,
        "search": search(tuning) if tuning.fastest else None,
        "statuses": _statuses(tuning),
        "importance": importance_table(important, config) if config and important else None,
        "importance_of": f"{len(own):,} variants of {config.family}" if config else "",
        "contenders": _contenders(tuning) if tuning.contenders else None,
        "trials": trials,
        "left_out": left_out,
        "trials_count": len(tuning.trials),
        "commands": [*_commands(tuning, config), ("make this page again", again)],
        "code": _code(tuning, config) if config else "",
        "sources": tuning.sources,
        "versions": tuning.record.versions if tuning.record else (),
        "counters": counters or {},
        "missing": missing,
        "unlimited": _unlimited(tuning, config),
        "on_host": tuning.info is not None and tuning.info.arch.is_host,
    }
    return _environment().get_template("page.html.jinja").render(values)


def bench_page(benches: Sequence[tuple[Path, BenchResult]], again: str) -> str:
    """The page of one or several benches and their files; `again` is the command that makes it. Raises DeviceError
    without matplotlib."""
    check_matplotlib("a report")
    parts = [benched(result, path, f"bench{place}") for place, (path, result) in enumerate(benches)]
    title = f"Products on {', '.join(dict.fromkeys(result.device.name for _, result in benches))}"
    commands = [*(command for part in parts for command in part.commands), ("make this page again", again)]
    values = {"kind": "bench", "title": title, "parts": parts, "commands": commands}
    return _environment().get_template("page.html.jinja").render(values)


def _figures(tuning: Tuning, us: float) -> list[tuple[str, str, str]]:
    """Value, caption and remark of each figure at the top of a page."""
    problem, record = tuning.problem, tuning.record
    figures = [(f"{figure(us)} us", "median time of one product", "")]
    figures.append((figure(problem.flops / us / 1e3), "GFLOP/s", ""))
    for least in bounds_of(tuning.gpu, problem)[:1] if tuning.gpu else ():
        more = f"no kernel takes less than {figure(least.us)} us, for {_LIMITS[least.by]} alone"
        figures.append((f"{least.us / us:.1%}", "of the device's limit", more))
    if record and record.ratio_vendor:
        within = f"95% interval {'..'.join(map(figure, record.ratio_interval))}" if record.ratio_interval else ""
        figures.append((figure(record.ratio_vendor), f"x {vendor_title(tuning.info)}", within))
    if record and record.accuracy:
        figures.append((f"{record.accuracy.worst:.2g}", "largest error over its proven bound", "at most 1 is right"))
    if tuning.trials:
        figures.append((f"{len(tuning.trials):,}", "variants tried", ""))
    return figures


def _contenders(tuning: Tuning) -> list[Column]:
    """Columns of the duel's contenders, the variants second: a narrow screen shows the first columns."""
    us, *others, variant = contender_columns(tuning.problem, tuning.contenders, tuning.info)
    return [us, variant, *(column for column in others if any(column.cells))]


def _unlimited(tuning: Tuning, config: Config | None) -> str:
    """Reason that the page says nothing on the limits of the winner; empty where it does."""
    if tuning.info is None:
        return f"This version has no facts of {tuning.device}: nothing is said on the limits of its kernels."
    if config is None:
        return "This version does not have the winner's variant: nothing is said on what limits it."
    return ""


def _statuses(tuning: Tuning) -> list[tuple[str, int, str]]:
    """Status, number and most frequent reason of the trials that ended in it."""
    reasons: dict[str, Counter[str]] = {}
    for trial in tuning.trials:
        reasons.setdefault(trial.entry.status, Counter())[trial.entry.reason] += 1
    rows = [(status, causes.total(), shortened(causes.most_common(1)[0][0])) for status, causes in reasons.items()]
    return sorted(rows, key=lambda row: -row[1])


def _commands(tuning: Tuning, config: Config | None) -> list[tuple[str, str]]:
    """Commands that repeat what the page shows, each after its purpose."""
    problem, gpu = tuning.problem, tuning.gpu
    options = " ".join(options_of(problem))
    on_host = tuning.info is not None and tuning.info.arch.is_host
    device = " --device host" if on_host else ""
    trials = len(tuning.trials) or EFFORTS["normal"].trials
    effort = "--effort full " if trials > EFFORTS["normal"].trials else ""
    commands = [("search again", f"tilewright tune {options} {effort}--trials {trials}{device}")]
    if config:
        variant = f"--config {shlex.quote(str(config))}"
        commands.append(
            (f"time the winner beside {vendor_title(tuning.info)}", f"tilewright bench {options} {variant}{device}")
        )
        if gpu and problem.batch == 1:
            emit = f"tilewright emit {options} --arch {gpu.arch.name} {variant} -o out"
            commands.append(("write the kernel for a program", emit))
    return [*commands, ("load the winner", load_command(problem, ', device="host"' if on_host else ""))]


def _code(tuning: Tuning, config: Config) -> str:
    """Text of the kernel; empty for a config that this version refuses."""
    target = tuning.info or max(KNOWN.values(), key=lambda info: info.arch.capability)
    try:
        return render(tuning.problem, config, target).code
    except TilewrightError:
        return ""
