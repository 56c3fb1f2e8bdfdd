"""`tilewright explain`: what runs for a shape as things are, and what else could."""

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
from ..codegen.problem import Problem
from ..runtime.check.roofline import rates_of
from ..runtime.store.codec import encode
from ..runtime.store.record import Record
from ..runtime.store.store import Store
from ..tuner.bench.report import Column, figure, save
from ..tuner.explain import Explained, explain
from ..tuner.plan import check_tunable
from .progress import ON_PROCESSOR
from .tables import WIDTH, counted, new_console, say, table, wrapped
from .targets import targets

_CHOICES = 10
"""Entries of the shortlist that are printed."""
_LINES = 40
"""Lines that are printed at most where 80 columns are there."""


def explain_command(
    shapes: tuple[str, ...],
    dtype: str,
    trans: str,
    accuracy: str,
    arches: tuple[str, ...],
    keys: tuple[str, ...],
    device: str,
    spaces: Path | None,
    json_file: Path | None,
    store: Path | None,
) -> None:
    """Print what a look-up takes, and the shortlist that it comes from."""
    if not shapes:
        raise click.UsageError("explain needs a shape; name it by --shape, as 1024x768x512")
    problems = dict.fromkeys(Problem.parse(shape, dtype, trans, accuracy) for shape in shapes)
    shelf = Store(store)
    devices, notes = targets(arches, keys, device, shelf)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    for problem, info in itertools.product(problems, devices):
        check_tunable(problem, info)
    told = [explain(problem, info, shelf, spaces) for info in devices for problem in problems]
    if json_file:
        save(json_file, json.dumps([_json(each) for each in told], indent=1) + "\n")
        return
    console = new_console()
    for number, each in enumerate(told):
        say(console, *([""] if number else []))
        show_explained(console, each)


def show_explained(console: Console, told: Explained) -> None:
    """Print the bound, the look-up, the shortlist and what cannot run, in at most 40 lines of 80 columns: as many
    entries of the shortlist as there is room for, ten at most."""
    problem, info, found = told.problem, told.device, told.found
    head = [*_bound(told), f"look-up: {found.config}", f"  {found.summary}: {told.why}", *_figures(told)]
    if told.handover:
        head.append(f"  vendor: its library serves instead, unless vendor='never', by {told.handover.why}")
    elif found.origin != "exact":
        head.append("  vendor: its library is timed beside this at first use, the faster one serves")
    nearest = ", ".join(f"{record.problem.shape} ({away:.2f})" for record, away in told.near)
    if nearest and found.origin != "exact":
        head.append(f"  near records, doublings away: {nearest}")
    counts = ", ".join(f"{count:,} {name}" for name, count in told.variants)
    head.append(f"search: {counted(sum(count for _, count in told.variants), 'variant')}, {counts}")
    unable = _unable(told)
    say(console, f"{problem} on {info.name}, {info.arch.name}, {info.sm_count} SMs", style="bold")
    say(console, *head)
    room = _LINES - 1 - _height(console, [*head, *unable]) - (2 if unable else 1)
    if rows := _rows(table(_columns(told), console.width), room):
        say(console, "", *rows)
    say(console, *["", *unable][: 1 + len(unable) if unable else 0])


def _height(console: Console, lines: Sequence[str]) -> int:
    """Lines of the screen that lines of prose take."""
    return sum(len(wrapped(line, min(console.width, WIDTH) - 2)) for line in lines)


def _rows(lines: Sequence[Text], room: int) -> list[Text]:
    """The head of a table and as many of its rows as there is room for; nothing where it has none."""
    heights = itertools.accumulate(line.plain.count("\n") + 1 for line in lines)
    shown = [line for line, height in zip(lines, heights) if height <= room]
    return shown if len(shown) > 1 else []


def _unable(told: Explained) -> list[str]:
    """The families that cannot run, a line a reason."""
    families: dict[str, list[str]] = {}
    for each in told.unable:
        families.setdefault(each.required, []).append(each.family)
    lines = [_sentence(names, required) for required, names in families.items()]
    return [f"{'  ' if number else 'cannot run: '}{line}" for number, line in enumerate(lines)]


def _sentence(families: Sequence[str], required: str) -> str:
    """Why some families cannot run."""
    *others, last = families
    names = f"{', '.join(others)} and {last}" if others else last
    if not required:
        return f"no variant in the {'spaces' if others else 'space'} of {names} serves it"
    return f"{names} {'require' if others else 'requires'} that {required}"


def _bound(told: Explained) -> list[str]:
    rates = rates_of(told.device, told.problem.accuracy)
    if rates is None:
        return [ON_PROCESSOR]
    first, *others = told.bounds
    less = ", ".join(f"{figure(each.us)} us by {each.by}" for each in others)
    speed, memory = rates.gflops(told.problem.dtype) / 1e3, rates.bandwidth_gbs / 1e3
    return [
        f"bound: {figure(first.us)} us by {first.by}; {less}",
        f"  at {speed:.1f} TFLOP/s and {memory:.2f} TB/s: {rates.source}",
    ]


def _figures(told: Explained) -> list[str]:
    """The measured time of the look-up's config, if its record is of this product, and the expected time."""
    record, expected_us = _measured(told), told.expected_us
    lines = []
    if record is not None:
        ratio = f", {figure(record.ratio_vendor)} x the vendor's library" if record.ratio_vendor else ""
        lines.append(f"  measured: {figure(record.median_us)} us{_of_bound(told, record.median_us)}{ratio}")
    if expected_us is not None and told.found.expected_us is None:
        of = f", {figure(expected_us / record.median_us)} times what was measured" if record else ""
        share = "" if record else _of_bound(told, expected_us)
        lines.append(f"  expected: {figure(expected_us)} us{of}{share}")
    return lines


def _measured(told: Explained) -> Record | None:
    """The record of just this product that the look-up gives."""
    return told.found.record if told.found.origin == "exact" else None


def _of_bound(told: Explained, us: float) -> str:
    return f", {told.bounds[0].us / us:.1%} of the bound" if told.bounds else ""


def _columns(told: Explained) -> list[Column]:
    choices = told.choices[:_CHOICES]
    expected = [choice.expected_us for choice in choices]
    shares = [f"{told.bounds[0].us / us:.1%}" if us and told.bounds else "" for us in expected]
    texts = [_differences(told.found.config, choice.config) for choice in choices]
    return [
        Column("expected us", [figure(us) for us in expected]),
        Column("of bound", shares, 1),
        Column(
            "by", [choice.source.removesuffix(" record").removeprefix("learned ") for choice in choices], 2, left=True
        ),
        Column("config, or what differs from the look-up's", texts, left=True, wraps_at=26),
    ]


def _differences(of: Config, config: Config) -> str:
    """The parameters in which a config differs from another one, or its text where that is shorter."""
    other = dict(of.values)
    changes = ",".join(f"{name}={value}" for name, value in config.values if other.get(name) != value)
    return changes if type(of) is type(config) and len(changes) <= len(str(config)) else str(config)


def _json(told: Explained) -> dict[str, Any]:
    record = _measured(told)
    return {
        "problem": encode(told.problem),
        "device": {"key": told.device.key, **told.device.packed()},
        "bounds_us": {bound.by: bound.us for bound in told.bounds},
        "lookup": {
            "config": str(told.found.config),
            "origin": told.found.origin,
            "from": told.found.taken_from or None,
            "why": told.why,
            "expected_us": told.expected_us,
            "regret": told.found.regret,
            "vendor": None if told.handover is None else dataclasses.asdict(told.handover),
        },
        "near": [{"shape": record.problem.shape, "doublings": away} for record, away in told.near],
        "measured_us": record.median_us if record else None,
        "expected_over_measured": told.expected_us / record.median_us if record and told.expected_us else None,
        "variants": dict(told.variants),
        "shortlist": [
            {
                "config": str(choice.config),
                "expected_us": choice.expected_us,
                "by": str(choice.source),
                "regret": choice.regret,
                "tuned_for": choice.record and f"{choice.record.problem} on {choice.record.device}",
            }
            for choice in told.choices
        ],
        "unable": [{"family": each.family, "why": _sentence([each.family], each.required)} for each in told.unable],
    }
