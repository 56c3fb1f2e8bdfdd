"""Rendered and emitted texts: their names, digests and constants, and the golden files, byte for byte."""

import re
import runpy
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from quick import TYPICAL
from tilewright.codegen.config import Config
from tilewright.codegen.environment import environment, tidy
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import kernel_name, render
from tilewright.codegen.source import KernelSource
from variants import RAGGED, coarse, dtypes, edges, product_families, variant

SM_90 = TYPICAL["sm_90a"]


def source(text: str, shape: str = "1024x768x512", dtype: str = "float", trans: str = "nn") -> KernelSource:
    return render(Problem.parse(shape, dtype, trans), parse(text), SM_90)


@pytest.mark.fast
@pytest.mark.parametrize(("text", "shape"), [pair for family in product_families() for pair in edges(family)])
def test_text_describes_the_kernel_and_its_launch(text: str, shape: str) -> None:
    config, pads = variant(text), "pad" in text
    problem = coarse(Problem.parse(shape, dtypes(type(config))[0]))
    kernel, launch = render(problem, config, SM_90), config.launch_config(problem, 132)
    assert kernel.name == kernel_name(config, problem.dtype, problem.trans)
    (written,) = re.findall(r'--config "([^"]*)"', kernel.code)
    assert parse(written) == config
    assert f"--dtype {problem.dtype.value} --trans {problem.trans}" in kernel.code
    first = kernel.preparation
    assert (first is not None) == (pads or config.terms > 0)
    for each in filter(None, (kernel, first)):
        assert each.code.count('extern "C" __global__') == 1
        assert each.code.startswith(f"// {each.name}\n")
        assert "{{" not in each.code
    assert f"({', '.join(map(str, launch.block))}) threads" in kernel.code
    assert re.search(r"digest [0-9a-f]{16}\.", kernel.code)
    assert config.template in kernel.code
    assert "{%" not in kernel.code
    sizes = "any m, n > 0" if shape == RAGGED and not pads else "m a multiple of"
    assert f"//   sizes      {sizes}" in kernel.code


@pytest.mark.fast
def test_same_input_gives_the_same_bytes_and_other_sizes_too() -> None:
    assert source("tiled:16").code == source("tiled:16").code == source("tiled:16", "32x64x16").code
    assert source("tiled:16").digest == source("tiled:16", "32x64x16").digest
    assert source("tiled:16", "7x8x9").code == source("tiled:16", "8x7x1").code


@pytest.mark.fast
def test_every_input_of_a_kernel_changes_the_digest() -> None:
    kernels = [
        source("tiled:16"),
        source("tiled:16", trans="nt"),
        source("tiled:16", dtype="double"),
        source("tiled:16,unroll=4"),
        source("tiled:16", RAGGED),
    ]
    assert len({kernel.digest for kernel in kernels}) == 5
    assert len({kernel.name for kernel in kernels}) == 4


@pytest.mark.fast
def test_config_that_cannot_serve_is_refused_before_rendering() -> None:
    with pytest.raises(ConfigError, match=r"cannot serve .* the tensor cores multiply double"):
        source("dmma:")


@pytest.mark.fast
@pytest.mark.parametrize("family", product_families().values(), ids=product_families())
def test_constants_are_parameters_with_their_meaning_and_each_is_used(family: type[Config]) -> None:
    config = variant(f"{family.family}:")
    code = render(coarse(Problem.parse("1024x768x512", dtypes(family)[0])), config, SM_90).code
    values = {"k" + name.title().replace("_", ""): value for name, value in config.values}
    constants = re.findall(r"^constexpr int (\w+) *= (\d+); *// (.+)$", code, re.MULTILINE)
    assert len(set(values) & {name for name, *_ in constants}) >= 2
    for name, value, meaning in constants:
        assert str(values.get(name, value)) == value
        assert len(meaning) > 5
    for name in re.findall(r"^constexpr \w+ (\w+) *=", code, re.MULTILINE):
        assert len(re.findall(rf"\b{name}\b", code)) > 1, name


@pytest.mark.fast
def test_a_name_missing_from_a_template_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        environment().from_string("{{ nowhere }}").render()


@pytest.mark.fast
def test_tidy_removes_trailing_blanks_and_runs_of_empty_lines() -> None:
    assert tidy("\na  \n\n\n\nb\t\n\n") == "a\n\nb\n"


# ---- Golden files; `python tests/golden/regenerate.py` accepts a change -----------------------------------------


ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "tests" / "golden" / "regenerate.py"))
FILES: dict[str, str] = SCRIPT["golden_files"]()


@pytest.mark.fast
@pytest.mark.parametrize("name", FILES)
def test_text_is_the_golden_one(name: str) -> None:
    assert (ROOT / name).read_bytes().decode() == FILES[name]


@pytest.mark.fast
def test_no_golden_file_is_left_over() -> None:
    assert SCRIPT["present"]() == set(FILES)


@pytest.mark.fast
@pytest.mark.parametrize("name", FILES)
def test_text_is_plain(name: str) -> None:
    text = FILES[name]
    assert text.isascii()
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\n\n\n" not in text
    assert "\t" not in text
    lines = text.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    # A command is one line, so that it can be copied.
    assert [line for line in lines if len(line) > 120 and "tilewright emit" not in line] == []
