"""`tilewright show`: what is stored."""

import csv
import io
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from ..codegen.errors import ConfigError
from ..codegen.problem import DType, Problem
from ..runtime.store.codec import encode
from ..runtime.store.record import Record
from ..runtime.store.store import Store
from ..tuner.bench.report import Column, figure
from . import options
from .tables import csv_cell, new_console, plain, say, shortened, table


@click.command("show")
@click.option("--shape", help="Only this one: MxNxK, or one number for a cube.")
@click.option("--dtype", help="Only float or double.")
@click.option("--device-key", help="Only this device, such as nvidia-h200.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, every field.")
@click.option("--csv", "as_csv", is_flag=True, help="As comma-separated values.")
@options.store
@options.debug
def show_command(
    shape: str | None,
    dtype: str | None,
    device_key: str | None,
    as_json: bool,
    as_csv: bool,
    store: Path | None,
) -> None:
    """Show what is stored: your own records, then those that ship with tilewright."""
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    shapes = {Problem.parse(shape).shape} if shape else None
    dtypes = {DType.parse(dtype)} if dtype else set(DType)
    layers = Store(store).layers()
    known = {record.device for layer in layers for record in layer}
    if device_key is not None and device_key not in known:
        raise ConfigError(f"--device-key must be one of {', '.join(sorted(known))}, got {device_key!r}")

    def wanted(record: Record) -> bool:
        problem = record.problem
        here = device_key in (None, record.device)
        return here and problem.dtype in dtypes and (shapes is None or problem.shape in shapes)

    own, shipped = (tuple(filter(wanted, layer)) for layer in layers)
    if as_json:
        click.echo(json.dumps([encode(record) for record in (*own, *shipped)], indent=1))
    elif as_csv:
        click.echo(records_csv((*own, *shipped)), nl=False)
    elif own or shipped:
        show_records(new_console(), own, shipped)
    else:
        what = "".join(f" {word}" for word in (shape, dtype) if word)
        click.echo(f"nothing is stored for{what} yet; tilewright tune --shape {shape or '1024x768x512'} makes a start")


def show_records(console: Console, own: Sequence[Record], shipped: Sequence[Record]) -> None:
    """Print a line a record, under a heading for each device."""
    cut = False
    for layer, whose in ((own, "your own"), (shipped, "shipped with tilewright")):
        for device, group in itertools.groupby(layer, lambda record: record.device):
            records = list(group)
            columns = [
                Column("M x N x K", [record.problem.shape for record in records], left=True),
                Column(
                    "type", [f"{record.problem.dtype.value} {record.problem.trans}" for record in records], left=True
                ),
                Column("us", [figure(record.median_us) for record in records]),
                Column("GFLOP/s", [figure(record.gflops) for record in records]),
                Column("x vendor", [figure(record.ratio_vendor) for record in records]),
            ]
            room = console.width - len(table(columns, 0)[-1]) - 2
            variants = [shortened(str(record.config), room) for record in records]
            cut = cut or any(variant.endswith("...") for variant in variants)
            rows = table([*columns, Column("variant", variants, left=True)], console.width)
            say(console, Text(f"{plain(device)}, {whose}", "bold"), *rows)
    if cut:
        say(console, "...: a variant with more settings; --json and --csv have them all")


_FIELDS = ("device", "shape", "dtype", "trans", "us", "gflops", "error_over_bound", "ratio_vendor", "config")


def records_csv(records: Sequence[Record]) -> str:
    """Stored records as comma-separated values with a header."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_FIELDS)
    for record in records:
        problem = record.problem
        error = record.accuracy.worst if record.accuracy else None
        text = (record.device, problem.shape, problem.dtype.value, problem.trans)
        numbers = (record.median_us, record.gflops, error, record.ratio_vendor)
        writer.writerow([*map(csv_cell, text), *numbers, csv_cell(str(record.config))])
    return out.getvalue()
