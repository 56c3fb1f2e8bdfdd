"""Bundles of kernels for tests that run emitted files on the processor."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from emitted_on_host import Program
from targets import TYPICAL
from tilewright.codegen.bundle import Served
from tilewright.codegen.emit import Layout, emit
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem

Row = tuple[str, str, str, str]
"""Config, shape, dtype and transposes."""

SHARED_K = "simt:32x32x8,thread=4x4,split_k=3"
TESTED = Layout(main=True)


def served(rows: Sequence[Row], *arches: str) -> list[Served]:
    names = arches or ("sm_90a",)
    return [
        Served(
            Problem.parse(shape, dtype, trans, parse(text).accuracy), parse(text), replace(TYPICAL[arch], sm_count=5)
        )
        for arch in names
        for text, shape, dtype, trans in rows
    ]


def program(rows: Sequence[Row], name: str, layout: Layout = TESTED, main: str = "") -> Program:
    """A bundle of kernels with its self-test, or with a main function of its own."""
    return Program(emit(served(rows), name, layout), name, main)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


def passes(*command: str | Path) -> str:
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
