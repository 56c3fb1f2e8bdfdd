"""`tilewright explain`: what runs for a shape, why, and what else could."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from ..codegen.config import Config
from ..codegen.errors import check
from ..codegen.problem import Problem
from ..runtime.check.roofline import rates_of
from ..runtime.store.codec import encode, packed
from ..runtime.store.store import Store
from ..tuner.bench.report import Column, figure, save
from ..tuner.explain import Explained, explain
from ..tuner.plan import check_tunable
from . import options
from .progress import ON_PROCESSOR
from .tables import WIDTH, counted, new_console, say, table, wrapped

_CHOICES = 10
"""Most entries of the shortlist that are printed."""
_LINES = 40
"""Most lines that are printed where there are 80 columns."""


def explain_command(
    shapes: tuple[str, ...],
    arches: tuple[str, ...],
    keys: tuple[str, ...],
    device: str,
    spaces: Path | None,
    json_file: Path | None,
    store: Path | None,
    **kind: Any,
) -> None:
    """Print the results of look-ups, and the shortlists that they come from; `kind` has the options of a product."""
    check(bool(shapes), "explain needs a shape; name it by --shape, as 1024x768x512")
    problems = dict.fromkeys(Problem.parse(shape, **kind) for shape in shapes)
    shelf = Store(store)
    devices, notes = options.targets(arches, keys, device, shelf)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    for problem, info in itertools.product(problems, devices):
        check_tunable(problem, info)
    explanations = [explain(problem, info, shelf, spaces) for info in devices for problem in problems]
    if json_file:
        save(json_file, json.dumps([_json(each) for each in explanations], indent=1) + "\n")
        return
    console = new_console()
    for number, each in enumerate(explanations):
        say(console, *([""] if number else []))
        show_explained(console, each)


def show_explained(console: Console, explained: Explained) -> None:
    """Print the bound, the look-up, the shortlist and what cannot run, in at most 40 lines of 80 columns. The shortlist
    has as many entries as there is room for, ten at most."""
    problem, info, lookup = explained.problem, explained.device, explained.lookup
    head = [
        *_bound(explained),
        f"look-up: {lookup.config}",
        f"  {lookup.summary}: {explained.why}",
        *_figures(explained),
    ]
    if explained.handover:
        head.append(f"  vendor: its library serves instead, unless vendor='never', by {explained.handover.why}")
    elif lookup.origin != "exact":
        head.append("  vendor: its library is timed beside this at first use, the faster one serves")
    nearest = ", ".join(f"{record.problem.title} ({away:.2f})" for record, away in explained.near)
    if nearest and lookup.origin != "exact":
        head.append(f"  near records, doublings away: {nearest}")
    counts = ", ".join(f"{count:,} {name}" for name, count in explained.variants)
    head.append(f"search: {counted(sum(count for _, count in explained.variants), 'variant')}, {counts}")
    unable = _unable(explained)
    say(console, f"{problem} on {info.name}, {info.arch.name}, {info.sm_count} SMs", style="bold")
    say(console, *head)
    room = _LINES - 1 - _height(console, [*head, *unable]) - (2 if unable else 1)
    if rows := _rows(table(_columns(explained), console.width), room):
        say(console, "", *rows)
    say(console, *["", *unable][: 1 + len(unable) if unable else 0])


def _height(console: Console, lines: Sequence[str]) -> int:
    """Number of lines that lines of prose take on the screen."""
    return sum(len(wrapped(line, min(console.width, WIDTH) - 2)) for line in lines)


def _rows(lines: Sequence[Text], room: int) -> list[Text]:
    """The head of a table and the rows that there is room for; empty where there is no room for a row."""
    heights = itertools.accumulate(line.plain.count("\n") + 1 for line in lines)
    shown = [line for line, height in zip(lines, heights) if height <= room]
    return shown if len(shown) > 1 else []


def _unable(explained: Explained) -> list[str]:
    """Lines on the families that cannot run, one for each reason."""
    families: dict[str, list[str]] = {}
    for family, required in explained.unable:
        families.setdefault(required, []).append(family)
    lines = [_sentence(names, required) for required, names in families.items()]
    return [f"{'  ' if number else 'cannot run: '}{line}" for number, line in enumerate(lines)]


def _sentence(families: Sequence[str], required: str) -> str:
    """The reason that some families cannot run."""
    *others, last = families
    names = f"{', '.join(others)} and {last}" if others else last
    if not required:
        return f"no variant in the {'spaces' if others else 'space'} of {names} serves it"
    return f"{names} {'require' if others else 'requires'} that {required}"


def _bound(explained: Explained) -> list[str]:
    rates = rates_of(explained.device, explained.problem.accuracy)
    if rates is None:
        return [ON_PROCESSOR]
    first, *others = explained.bounds
    rest = ", ".join(f"{figure(each.us)} us by {each.by}" for each in others)
    speed, memory = rates.gflops(explained.problem.dtype) / 1e3, rates.bandwidth_gbs / 1e3
    return [
        f"bound: {figure(first.us)} us by {first.by}; {rest}",
        f"  at {speed:.1f} TFLOP/s and {memory:.2f} TB/s: {rates.source}",
    ]


def _figures(explained: Explained) -> list[str]:
    """Lines on the measured time of the look-up's config, if its record is of this product, and the expected time."""
    record, expected_us = explained.record, explained.expected_us
    lines = []
    if record is not None:
        ratio = f", {figure(record.ratio_vendor)} x the vendor's library" if record.ratio_vendor else ""
        lines.append(f"  measured: {figure(record.median_us)} us{_of_bound(explained, record.median_us)}{ratio}")
    if expected_us is not None and explained.lookup.expected_us is None:
        ratio = f", {figure(expected_us / record.median_us)} times what was measured" if record else ""
        share = "" if record else _of_bound(explained, expected_us)
        lines.append(f"  expected: {figure(expected_us)} us{ratio}{share}")
    return lines


def _of_bound(explained: Explained, us: float) -> str:
    return f", {explained.bounds[0].us / us:.1%} of the bound" if explained.bounds else ""


def _columns(explained: Explained) -> list[Column]:
    choices = explained.choices[:_CHOICES]
    expected = [choice.expected_us for choice in choices]
    shares = [f"{explained.bounds[0].us / us:.1%}" if us and explained.bounds else "" for us in expected]
    texts = [_differences(explained.lookup.config, choice.config) for choice in choices]
    return [
        Column("expected us", [figure(us) for us in expected]),
        Column("of bound", shares, 1),
        Column(
            "by", [choice.source.removesuffix(" record").removeprefix("learned ") for choice in choices], 2, left=True
        ),
        Column("config, or what differs from the look-up's", texts, left=True, wraps_at=26),
    ]


def _differences(base: Config, config: Config) -> str:
    """The parameters in which `config` differs from `base`, or its whole text where that is shorter."""
    other = dict(base.values)
    changes = ",".join(f"{name}={value}" for name, value in config.values if other.get(name) != value)
    return changes if type(base) is type(config) and len(changes) <= len(str(config)) else str(config)


def _json(explained: Explained) -> dict[str, Any]:
    measured_us = explained.record and explained.record.median_us
    return {
        "problem": encode(explained.problem),
        "device": {"key": explained.device.key, **packed(explained.device, whole=False)},
        "bounds_us": {bound.by: bound.us for bound in explained.bounds},
        "lookup": {
            "config": str(explained.lookup.config),
            "origin": explained.lookup.origin,
            "from": explained.lookup.taken_from or None,
            "why": explained.why,
            "expected_us": explained.expected_us,
            "regret": explained.lookup.regret,
            "vendor": explained.handover and dataclasses.asdict(explained.handover),
        },
        "near": [{"shape": record.problem.title, "doublings": away} for record, away in explained.near],
        "measured_us": measured_us,
        "expected_over_measured": measured_us and explained.expected_us and explained.expected_us / measured_us,
        "variants": dict(explained.variants),
        "shortlist": [
            {
                "config": str(choice.config),
                "expected_us": choice.expected_us,
                "by": str(choice.source),
                "regret": choice.regret,
                "tuned_for": choice.record and f"{choice.record.problem} on {choice.record.device}",
            }
            for choice in explained.choices
        ],
        "unable": [{"family": family, "why": _sentence([family], required)} for family, required in explained.unable],
    }
