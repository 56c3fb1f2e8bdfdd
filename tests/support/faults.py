"""Variants that go wrong, put where the tuner's processes find them: in the cache, as if the compiler had made them."""

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
"""The first statement of the tiled kernel's body that every thread runs."""


class Altering:
    """A compiler that says it is the real one and compiles altered text."""

    def __init__(self, real: Compiler, alter: Callable[[str], str]) -> None:
        self._real, self._alter = real, alter
        self.suffix, self.identity = real.suffix, real.identity

    def build(self, source: KernelSource, folder: str) -> Binary:
        altered = self._alter(source.code)
        assert altered != source.code, "the fault was not planted"
        return self._real.build(replace(source, code=altered), folder)


def plant(selector: str, problem: Problem, config: str, statement: str, prelude: str = "") -> Config:
    """From now on the config's kernel runs `statement` first."""
    info = choose(selector)
    chosen = variant(config)
    compiler: Any = Altering(
        compiler_for(info), lambda code: prelude + code.replace(FIRST_LINE, FIRST_LINE + f"    {statement}\n")
    )
    compile_cached(compiler, render(problem, chosen, info))
    return chosen


def small_space(folder: Path, *widths: int) -> Path:
    """A folder with one space file: the tiled family with some widths and nothing else to choose."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = ", ".join(map(str, widths))
    text = f'family = "tiled"\n[parameters]\ntile_width = [{listed}]\nedge = ["fit"]\nskew = [0]\nunroll = [4]\n'
    (folder / "tiled.toml").write_text(text)
    return folder
