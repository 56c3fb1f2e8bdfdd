"""Page of a tuning or of benches, from a template: one file that loads nothing from elsewhere."""

import shlex
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ...codegen.config import Config
from ...codegen.errors import TilewrightError
from ...codegen.render import render
from ...runtime.check.roofline import floor_us, rates_of
from ...runtime.device.known import KNOWN
from ..bench.plot import check_matplotlib
from ..bench.report import figure
from ..bench.rows import TITLES, BenchResult
from ..result import load_command
from ..settings import EFFORTS
from .benched import benched
from .charts import Chart
from .drawn import roofline, search
from .importance import importances
from .tables import contenders_table, importance_table, trials_table, why
from .tuning import Tuning, options_of, shortened


@cache
def _environment() -> Environment:
    package, _, folder = __package__.partition(".")
    loader = PackageLoader(package, folder.replace(".", "/"))
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["markup"] = _markup
    environment.filters["breakable"] = _breakable
    return environment


def _markup(chart: Chart) -> list[tuple[str, Markup]]:
    """Width and SVG of a chart, as markup: matplotlib escapes the text in it."""
    return [(width, Markup(svg)) for width, svg in chart.svgs]


def _breakable(text: str) -> Markup:
    """A text that a browser may break after any comma."""
    return Markup(",<wbr>").join(text.split(","))


def tuning_page(tuning: Tuning, again: str, counters: Sequence[tuple[str, str, str]] = (), missing: str = "") -> str:
    """The page of a tuning; `again` is the command that makes it. `counters` are names, values and units of Nsight
    Compute, `missing` says why there are none. Raises DeviceError without matplotlib."""
    check_matplotlib("a report")
    problem, gpu = tuning.problem, tuning.gpu
    config, variant, us = tuning.winner
    vendor = TITLES["cublas" if gpu or not tuning.info else "numpy"]
    rates = rates_of(gpu, problem.accuracy) if gpu else None
    own = [(t.config, t.entry.time_us) for t in tuning.fastest if t.config and type(t.config) is type(config)]
    important = importances([(each, time) for each, time in own if time]) if config else ()
    values: dict[str, Any] = {
        "kind": "tuning",
        "title": f"{problem} on {tuning.device}",
        "variant": variant,
        "family": config.title if config else "",
        "shown": _figures(tuning, us, vendor),
        "why": why(tuning, gpu, config) if gpu and config else None,
        "rates": rates,
        "roofline": roofline(tuning, gpu, rates) if gpu and rates else None,
        "search": search(tuning) if tuning.fastest else None,
        "statuses": _statuses(tuning),
        "importance": importance_table(important, config) if config and important else None,
        "importance_of": f"{len(own):,} variants of {config.family}" if config else "",
        "contenders": contenders_table(tuning, vendor) if tuning.contenders else None,
        "trials": trials_table(tuning) if tuning.trials else None,
        "trials_count": len(tuning.trials),
        "commands": [*_commands(tuning, config), again],
        "code": _code(tuning, config) if config else "",
        "sources": tuning.sources,
        "versions": tuning.record.versions if tuning.record else (),
        "counters": counters,
        "missing": missing,
        "on_host": tuning.info is not None and tuning.info.arch.is_host,
    }
    return _environment().get_template("page.html.jinja").render(values)


def bench_page(results: Sequence[BenchResult], again: str) -> str:
    """The page of one or several benches. Raises DeviceError without matplotlib."""
    check_matplotlib("a report")
    parts = [benched(result, f"bench{place}") for place, result in enumerate(results)]
    title = f"Products on {', '.join(dict.fromkeys(result.device.name for result in results))}"
    values = {"kind": "bench", "title": title, "parts": parts, "commands": [again]}
    return _environment().get_template("page.html.jinja").render(values)


def _figures(tuning: Tuning, us: float, vendor: str) -> list[tuple[str, str, str]]:
    """Value, caption and remark of each figure at the top of a page."""
    problem, record = tuning.problem, tuning.record
    figures = [(f"{figure(us)} us", "median time of one product", "")]
    figures.append((figure(problem.flops / us / 1e3), "GFLOP/s", ""))
    least = floor_us(tuning.gpu, problem) if tuning.gpu else None
    if least:
        more = f"{figure(least)} us: arithmetic, memory traffic or a launch, whichever is longest"
        figures.append((f"{least / us:.1%}", "of the device's limit", more))
    if record and record.ratio_vendor:
        within = f"95% interval {'..'.join(map(figure, record.ratio_interval))}" if record.ratio_interval else ""
        figures.append((figure(record.ratio_vendor), f"x {vendor}", within))
    if record and record.accuracy:
        figures.append((f"{record.accuracy.worst:.2g}", "largest error over its proven bound", "at most 1 is right"))
    if tuning.trials:
        figures.append((f"{len(tuning.trials):,}", "variants tried", ""))
    return figures


def _statuses(tuning: Tuning) -> list[tuple[str, int, str]]:
    """Status, number and most frequent reason of the trials that ended in it."""
    reasons: dict[str, Counter[str]] = {}
    for trial in tuning.trials:
        reasons.setdefault(trial.entry.status, Counter())[trial.entry.reason] += 1
    rows = [(status, causes.total(), shortened(causes.most_common(1)[0][0])) for status, causes in reasons.items()]
    return sorted(rows, key=lambda row: -row[1])


def _commands(tuning: Tuning, config: Config | None) -> list[str]:
    problem, gpu = tuning.problem, tuning.gpu
    options = options_of(problem)
    trials = len(tuning.trials) or EFFORTS["normal"].trials
    effort = "--effort full " if trials > EFFORTS["normal"].trials else ""
    commands = [f"tilewright tune {options} {effort}--trials {trials}"]
    if config and gpu:
        commands.append(f"tilewright emit {options} --arch {gpu.arch.name} --config {shlex.quote(str(config))} -o out")
    return [*commands, load_command(problem)]


def _code(tuning: Tuning, config: Config) -> str:
    """Text of the kernel; empty for a config that this version refuses."""
    target = tuning.info or max(KNOWN.values(), key=lambda info: info.arch.capability)
    try:
        return render(tuning.problem, config, target).code
    except TilewrightError:
        return ""
