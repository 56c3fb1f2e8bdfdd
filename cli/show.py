"""`tilewright show`: the stored records."""

import itertools
import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from ..codegen.errors import check, nearest_of
from ..codegen.problem import Grade, Problem
from ..runtime.store.codec import encode
from ..runtime.store.record import Record
from ..runtime.store.store import Store
from ..tuner.bench.report import Column, figure, save
from ..tuner.result import Result
from . import options
from .tables import counted, csv_line, new_console, plain, say, shortened, table

_LEAST_VARIANT = 20
"""Least characters of a variant; where they do not fit, columns of ratios are left out."""
CUT = "...: a variant with more settings; --json and --csv have them all"


def show_command(
    shape: str | None,
    with_shipped: bool,
    best: bool,
    json_file: Path | None,
    as_csv: bool,
    store: Path | None,
    **kind: Any,
) -> None:
    """Print the records, as a table, JSON or comma-separated values; `kind` has the options of a Selection."""
    check(not (json_file and as_csv), "--json and --csv exclude each other; leave out one")
    selection, device_key = options.Selection(None if shape is None else (shape,), **kind), kind.pop("device_key")
    layers = Store(store).layers()
    keys = {record.device for layer in layers for record in layer}
    text = f"--device-key must be one of {', '.join(sorted(keys))}, got {device_key!r}{nearest_of(device_key, keys)}"
    check(device_key is None or device_key in keys, text)
    own, shipped = (tuple(each for each in layer if selection.takes(each.device, each.problem)) for layer in layers)
    records = fastest((*own, *shipped)) if best else (*own, *shipped)
    if json_file:
        save(json_file, json.dumps([encode(record) for record in records], indent=1) + "\n")
    elif as_csv:
        click.echo(records_csv(records), nl=False)
    elif best and records:
        show_records(new_console(), [("the fastest of each product", records)], devices=True)
    elif records:
        show_layers(new_console(), own, shipped, with_shipped)
    else:
        product = {"shape": shape or "1024x768x512", **kind, "store": store}
        words = (word for name, value in product.items() if value for word in (f"--{name}", str(value)))
        command = shlex.join(("tilewright", "tune", *words))
        click.echo(f"nothing is stored{selection.words} yet; {command} makes a start")


def fastest(records: Iterable[Record]) -> list[Record]:
    """The fastest record of each problem, sorted by dtype, transposes and shape; the first one of equal times."""
    best: dict[Problem, Record] = {}
    for record in sorted(records, key=lambda record: record.median_us):
        best.setdefault(record.problem, record)
    return sorted(best.values(), key=lambda r: (r.problem.kind, r.problem.m, r.problem.n, r.problem.k))


def show_layers(console: Console, own: Sequence[Record], shipped: Sequence[Record], with_shipped: bool) -> None:
    """Print a line for each record, under a heading for each device and accuracy. Shipped records are only counted,
    unless `with_shipped`."""
    layers = ((own, "your own"), (shipped if with_shipped else (), "shipped with tilewright"))
    groups = [
        (f"{plain(device)}, {owner}", list(group))
        for layer, owner in layers
        for device, group in itertools.groupby(layer, lambda record: record.device)
    ]
    show_records(console, groups)
    if not own:
        say(console, "nothing of your own is stored yet")
    if shipped and not with_shipped:
        say(console, f"shipped with tilewright: {counted(len(shipped), 'record')}; show --shipped lists them")


def show_bests(console: Console, results: Sequence[Result], count: int) -> None:
    """Print the winners of a run of `count` shapes, a line each."""
    if results:
        say(console, "")
        show_records(console, [(f"{len(results)} of {count} shapes", [result.best for result in results])])


def show_records(console: Console, groups: Sequence[tuple[str, Sequence[Record]]], *, devices: bool = False) -> None:
    """Print a table for each accuracy of each group, under the group's title, with a column of devices if asked for,
    and a remark where a variant is cut."""
    tables: list[list[Text]] = []
    for (title, group), grade in itertools.product(groups, Grade):
        if records := [record for record in group if record.problem.accuracy is grade]:
            lines = record_lines(console.width, records, devices=devices)
            heading = Text(title if grade is Grade.IEEE else f"{title}, {grade}", "bold")
            say(console, *([""] if tables else []), heading, *lines)
            tables.append(lines)
    if any(line.plain.endswith("...") for lines in tables for line in lines):
        say(console, CUT)


def record_lines(width: int, records: Sequence[Record], *, devices: bool = False) -> list[Text]:
    """The head of a table and a line for each record; all records have one accuracy."""
    problems = [record.problem for record in records]
    graded = any(problem.accuracy is not Grade.IEEE for problem in problems)  # an error belongs beside each speed then

    def figures(figure_of: Callable[[Record], float | None]) -> list[str]:
        return [figure(figure_of(record)) for record in records]

    columns = [
        Column("M x N x K", [problem.title for problem in problems], left=True),
        Column("type", [f"{problem.dtype.value} {problem.trans}" for problem in problems], left=True),
        Column("us", figures(lambda record: record.median_us)),
        Column("GFLOP/s", figures(lambda record: record.gflops), 1),
        *([Column("err/bound", list(map(_error, records)))] if graded else []),
        Column("x vendor", figures(lambda record: record.ratio_vendor), 2),
        *([Column("device", [record.device for record in records], left=True)] if devices else []),
    ]
    if _room(columns, width) < _LEAST_VARIANT:
        columns = [column for column in columns if column.rank < 2]  # a variant says more than its ratio
    room = _room(columns, width)
    variants = [shortened(str(record.config), room) for record in records]
    return table([*columns, Column("variant", variants, 3, left=True)], width)


def _error(record: Record) -> str:
    return "" if record.accuracy is None else f"{record.accuracy.worst:.2g}"


def _room(columns: Sequence[Column], width: int) -> int:
    """Number of characters of a line that the columns leave."""
    return width - len(table(columns, width)[0].plain.splitlines()[1]) - 2


_FIELDS = "device shape dtype trans accuracy batch us gflops error_over_bound ratio_vendor config".split()


def records_csv(records: Sequence[Record]) -> str:
    """Stored records as comma-separated values with a header."""
    lines = [csv_line(_FIELDS)]
    for record in records:
        problem = record.problem
        kind = problem.dtype.value, problem.trans, problem.accuracy.value, problem.batch
        error = record.accuracy.worst if record.accuracy else None
        numbers = record.median_us, record.gflops, error, record.ratio_vendor
        lines.append(csv_line([record.device, problem.shape, *kind, *numbers, str(record.config)]))
    return "".join(lines)
