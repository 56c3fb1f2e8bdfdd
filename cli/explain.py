"""`tilewright explain`: what would be tried for a shape, and what runs as things are."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ..codegen.problem import Problem
from ..runtime.check.roofline import rates_of
from ..runtime.store.codec import encode
from ..runtime.store.store import Store
from ..tuner.bench.report import Column, figure, save
from ..tuner.plan import check_tunable
from ..tuner.search.explain import Explained, Guess, explain
from ..tuner.search.model import estimate_us
from .progress import ON_PROCESSOR
from .tables import new_console, say, table
from .targets import targets

_GUESSES, _REASONS = 8, 12


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
    """Print what a search would try and what a look-up takes."""
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
    """Print the bound, the look-up, the search's first guesses and what it leaves out."""
    problem, info, found = told.problem, told.device, told.found
    say(console, f"{problem} on {info.name}, {info.arch.name}, {info.sm_count} SMs", style="bold")
    say(console, *_bound(told), f"look-up: {found.config}", f"  {found.told}: {told.why}", *_figures(told))
    if told.handover:
        say(console, f"  vendor: its library serves instead, unless vendor='never', by {told.handover.why}")
    elif found.origin != "exact":
        say(console, "  vendor: its library is timed beside this at first use, and serves where it is faster")
    nearest = ", ".join(f"{record.problem.shape} ({away:.2f})" for record, away in told.near)
    if nearest:
        say(console, f"  nearest records, doublings away: {nearest}")
    families = ", ".join(f"{count:,} {name}" for name, count in told.tried)
    variants = sum(count for _, count in told.tried)
    say(console, f"search: {variants:,} variants, {families}; {len(told.guesses)} of them first", "")
    say(console, *table(_guess_columns(told), console.width))
    if told.left_out:
        say(console, "", *table(_reason_columns(told), console.width))
    rest = told.left_out[_REASONS:]
    if rest:
        count = sum(each.combinations for each in rest)
        say(console, f"and {len(rest)} more reasons, {count:,} combinations; --json has all")


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
    """What the record of the look-up says, where it is of this product."""
    record = told.found.record
    if record is None or told.found.origin != "exact":
        return []
    expected = ""
    share = f", {told.bounds[0].us / record.median_us:.1%} of the bound" if told.bounds else ""
    ratio = f", {figure(record.ratio_vendor)} x the vendor's library" if record.ratio_vendor else ""
    if not told.device.arch.is_host:
        expected = f"; the model expects {figure(estimate_us(told.problem, record.config, told.device))} us"
    return [f"  measured: {figure(record.median_us)} us{share}{ratio}{expected}"]


def _guess_columns(told: Explained) -> list[Column]:
    # One for each time: of those with the same time the model knows no difference.
    told_apart: dict[object, Guess] = {}
    for place, guess in enumerate(told.guesses):
        told_apart.setdefault(figure(guess.expected_us) or place, guess)
    guesses = [*told_apart.values()][:_GUESSES]
    expected = [guess.expected_us for guess in guesses]
    shares = [f"{told.bounds[0].us / us:.1%}" if us and told.bounds else "" for us in expected]
    return [
        Column("expected us", [figure(us) for us in expected]),
        Column("of bound", shares, 1),
        Column("by", [guess.source for guess in guesses], 2, left=True),
        Column("first guesses", [str(guess.config) for guess in guesses], left=True, wraps_at=26),
    ]


def _reason_columns(told: Explained) -> list[Column]:
    reasons = told.left_out[:_REASONS]
    return [
        Column("left out", [f"{each.combinations:,}" for each in reasons]),
        Column("by", [each.step for each in reasons], left=True),
        Column("rule that they break", [each.reason for each in reasons], left=True, wraps_at=26),
    ]


def _json(told: Explained) -> dict[str, Any]:
    return {
        "problem": encode(told.problem),
        "device": {"key": told.device.key, **told.device.packed()},
        "bounds_us": {bound.by: bound.us for bound in told.bounds},
        "lookup": {
            "config": str(told.found.config),
            "origin": told.found.origin,
            "from": told.found.taken_from or None,
            "why": told.why,
            "expected_us": told.found.expected_us,
            "regret": told.found.regret,
            "vendor": None if told.handover is None else dataclasses.asdict(told.handover),
        },
        "near": [{"shape": record.problem.shape, "doublings": away} for record, away in told.near],
        "variants": dict(told.tried),
        "guesses": [
            {"config": str(guess.config), "expected_us": guess.expected_us, "by": guess.source}
            for guess in told.guesses
        ],
        "left_out": [
            {"combinations": each.combinations, "by": each.step, "reason": each.reason} for each in told.left_out
        ],
    }
