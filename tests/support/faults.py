"""Faulty kernels, put into the cache as if the compiler had made them, so that processes of the tuner load them, and
processes that such kernels may crash."""

import faulthandler
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.codegen.config import Config
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import KernelSource
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.detect import choose, compiler_for
from tilewright.runtime.device.protocol import Binary, Compiler
from variants import variant

FIRST_LINE = "    const int tx = threadIdx.x;\n"
"""First statement in the body of the tiled kernel; every thread runs it."""


class Altering:
    """A compiler that has the identity of the real one and compiles altered text."""

    def __init__(self, real: Compiler, alter: Callable[[str], str]) -> None:
        self._real, self._alter = real, alter
        self.suffix, self.identity = real.suffix, real.identity

    def build(self, source: KernelSource, folder: str) -> Binary:
        altered = self._alter(source.code)
        assert altered != source.code, "the fault was not planted"
        return self._real.build(replace(source, code=altered), folder)


def plant(selector: str, problem: Problem, config: str, statement: str, prelude: str = "") -> Config:
    """Put into the cache a kernel of the config that runs `statement` first. Returns the config."""
    info = choose(selector)
    parsed = variant(config)
    compiler: Any = Altering(
        compiler_for(info), lambda code: prelude + code.replace(FIRST_LINE, FIRST_LINE + f"    {statement}\n")
    )
    compile_cached(compiler, render(problem, parsed, info))
    return parsed


def holds_in_a_process(holds: Callable[[], bool]) -> bool:
    """Whether a function returns True in a forked process, which it may crash. Raises AssertionError for an exception
    there."""

    def child() -> None:
        faulthandler.disable()  # a crash is an expected outcome
        sys.exit(0 if holds() else 2)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode != 1, "the child ended by an exception"
    return process.exitcode == 0


def small_space(folder: Path, *widths: int) -> Path:
    """A folder with one space file: the tiled family with these tile widths and no other choice."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = ", ".join(map(str, widths))
    text = f'family = "tiled"\n[parameters]\ntile_width = [{listed}]\nedge = ["fit"]\nskew = [0]\nunroll = [4]\n'
    (folder / "tiled.toml").write_text(text)
    return folder
