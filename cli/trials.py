"""File of a run's trials, a line of comma-separated values each."""

from collections.abc import Sequence
from pathlib import Path

import click

from ..codegen.config import Config
from ..codegen.families import families
from ..codegen.problem import Problem
from ..runtime.files import is_stream, write_output
from ..tuner.measure.evaluate import Tried
from ..tuner.recording.entry import Entry
from .tables import csv_line

_FACTS = (
    "m n k dtype trans accuracy batch device status us error_over_bound reason compile_s verify_s time_s config family"
).split()
_PARAMETERS = tuple(dict.fromkeys(leaf.name for kind in families().values() for leaf in kind.leaves()))


class TrialsFile:
    """A file with a row for each trial, written as it ends, under a header that is the same for all runs.

    The parameters of all families are columns, empty where a variant's family lacks one. Without a path nothing is
    written. Where the file cannot be written any longer, a note says so and the run goes on. Raises OSError where the
    header cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path:
            _append(path, "w", [*_FACTS, *_PARAMETERS])

    def tried(self, tried: Tried) -> None:
        """Add a trial of this run."""
        self.entered(tried.record.problem, tried.record.device, tried.record.config, Entry.of(tried))

    def entered(self, problem: Problem, device_key: str, config: Config, entry: Entry, note: str = "") -> None:
        """Add a trial of a worker or of an earlier run; `note` is the reason where the entry has none."""
        if not self._path:
            return
        facts = problem.m, problem.n, problem.k, problem.dtype.value, problem.trans, problem.accuracy.value
        outcome = device_key, entry.status, entry.time_us, entry.error, entry.reason or note
        costs, values = (entry.compile_s, entry.verify_s, entry.bench_s), dict(config.values)
        parameters = map(values.get, _PARAMETERS)
        row = [*facts, problem.batch, *outcome, *costs, str(config), config.family, *parameters]
        try:
            _append(self._path, "a", row)
        except OSError as error:
            click.echo(f"note: {self._path} ends here: {error.strerror}", err=True)
            self._path = None


def _append(path: Path, mode: str, row: Sequence[object]) -> None:
    line = csv_line(row)
    if is_stream(path):
        write_output(path, line.encode(errors="backslashreplace"))
        return
    with path.open(mode, encoding="utf-8", newline="") as file:
        file.write(line)
