"""`tilewright report`: a page on a tuning or on benches."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..codegen.errors import DeviceError, check
from ..codegen.problem import Problem
from ..runtime.store.store import Store
from ..tuner.bench.report import save
from ..tuner.bench.stored import read_bench
from ..tuner.result import kind_options
from .values import is_stdout_taken

if TYPE_CHECKING:  # at run time these modules, which are slow to import, are imported late
    from ..tuner.report.counters import Counters
    from ..tuner.report.tuning import Tuning


def report_command(
    shape: str | None,
    dtype: str,
    trans: str,
    accuracy: str,
    batch: int,
    device_key: str | None,
    recording: Path | None,
    results: Path | None,
    benches: tuple[Path, ...],
    ncu: bool,
    output: Path,
    store: Path | None,
) -> None:
    """Write the page."""
    from ..tuner.report import page, tuning

    sources = {"--shape": shape, "--device-key": device_key, "--recording": recording, "--results": results}
    words = [word for name, value in sources.items() if value for word in (name, str(value))]
    if benches:
        check(not (words or ncu), f"--bench excludes {words[0] if words else '--ncu'}; leave out one")
        words = [word for path in benches for word in ("--bench", str(path))]
        text = page.bench_page([(path, read_bench(path)) for path in benches], _again(words, output))
    else:
        is_named = shape is not None or bool(recording or results)
        check(is_named, "report needs a tuning or a bench; name it by --shape, --recording, --results or --bench")
        problem = Problem.parse(shape, dtype, trans, accuracy, batch=batch) if shape is not None else None
        words += kind_options(problem) if problem else []
        words += [*(("--store", str(store)) if store else ()), *(("--ncu",) if ncu else ())]
        data = tuning.tuning_of(Store(store), problem, device_key, recording, results)
        counters, missing = _counters(data) if ncu else ({}, "")
        text = page.tuning_page(data, _again(words, output), counters, missing)
    save(output, text)
    click.echo(f"wrote {output}", err=is_stdout_taken())


def _again(words: list[str], output: Path) -> str:
    return shlex.join(["tilewright", "report", *words, "-o", str(output)])


def _counters(tuning: "Tuning") -> tuple["Counters", str]:
    """Counters of the winner and, where they cannot be read, the reason."""
    from ..tuner.report.counters import counters

    config = tuning.winner[0]
    try:
        if config is None:
            raise DeviceError("--ncu: the winner is of an older version, and its kernel cannot be made")
        return counters(tuning.problem, config, tuning.gpu), ""
    except DeviceError as error:
        click.echo(f"note: {error}", err=True)
        return {}, str(error)
