"""The command line, called in the test's own process."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tilewright.cli import app as cli

SMALL = ("--shape", "24x20x16", "--trials", "4", "--seconds", "20", "--device", "host")


@dataclass
class Ran:
    """The output of one command and how it ended."""

    status: int
    out: str
    err: str


Run = Callable[..., Ran]


def caller(capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that calls `tilewright`, or another entry point, with arguments."""

    def call(*arguments: str, entry: Callable[[list[str]], None] = cli.main) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            entry(list(arguments))
        out, err = capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return Ran(exited.value.code, out, err)

    return call
