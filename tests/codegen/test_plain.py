"""The plain form of the classic kernels: readable files, which run unchanged but for the launch."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from emitted import COMPILER, FAKE, HEADERS
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import families, parse
from tilewright.codegen.plain import plain
from tilewright.codegen.problem import Problem

EXACT, RAGGED = "64x48x32", "33x47x29"
CASES = {
    "naive exact": ("naive:8x16", EXACT, "float"),
    "naive bounds": ("naive:8x32", RAGGED, "double"),
    "naive bounds though tiles divide": ("naive:8x16,edge=bounds", EXACT, "float"),
    "naive pad": ("naive:16x16,edge=pad,unroll=1", RAGGED, "float"),
    "tiled exact": ("tiled:16", EXACT, "double"),
    "tiled bounds": ("tiled:8,skew=1", RAGGED, "float"),
    "tiled pad": ("tiled:16,edge=pad,skew=1", RAGGED, "double"),
}
MOST_LINES = 120
ARCHES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
NVCC = shutil.which("nvcc")


def text_of(name: str) -> str:
    config, shape, dtype = CASES[name]
    ((filename, text),) = plain(Problem.parse(shape, dtype), parse(config), "product").files
    assert filename == "product.cu"
    return text


def built(text: str, folder: Path) -> Path:
    """The program with CUDA's runtime by fake_cuda."""
    text, launches = re.subn(r"(\w+)<<<(\w+), (\w+)>>>\(", r"fake::launch(\1, \2, \3, ", text)
    assert launches == 1
    main = "int main(int argc, char** argv)\n{\n"
    assert main in text
    source, program = folder / "product.cpp", folder / "product"
    source.write_text(text.replace(main, main + "    FAKE_KERNEL(1, matmul)\n"))
    command = [str(COMPILER), "-std=c++20", "-O1", "-pthread", "-Wno-unknown-pragmas", f"-I{FAKE}", f"-I{HEADERS}"]
    done = subprocess.run([*command, str(source), "-o", str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return program


def run(program: Path, *sizes: int) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([program, *map(str, sizes)], capture_output=True, text=True, check=False)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize("name", CASES)
def test_the_program_times_and_checks_its_product(name: str, tmp_path: Path) -> None:
    _, shape, dtype = CASES[name]
    program = built(text_of(name), tmp_path)
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert re.fullmatch(
        rf"{shape} {dtype}: [\d.]+ us a product, \d+ GFLOP/s, and [\d.]+ us with copies there and back", first
    )
    assert re.fullmatch(r"right: the largest error is [\d.e-]+ of its bound", second)
    for sizes in ((0, 5, 5), (5,), (1, 2, 3, 4)):
        refused = run(program, *sizes)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith("usage: ")
    other = run(program, 35, 17, 21)
    assert other.returncode == (2 if "exact" in name else 0)
    assert ("that the tiles divide" in other.stderr) == ("exact" in name)


FAULTS = {
    "naive bounds": ("row >= size_t(m) ||", "row + 1 >= size_t(m) ||"),
    "naive pad": ("p < k; ++p", "p + 1 < k; ++p"),
    "tiled exact": ("b_tile[i][tx]", "b_tile[tx][i]"),
    "tiled bounds": ("p + tx < k ?", "p + tx < k - 1 ?"),
    "tiled pad": ("p < k; p += kTile", "p + kTile < k; p += kTile"),
}


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize("name", FAULTS)
def test_the_program_detects_a_wrong_product(name: str, tmp_path: Path) -> None:
    old, new = FAULTS[name]
    text = text_of(name)
    assert old in text
    done = run(built(text.replace(old, new, 1), tmp_path))
    assert done.returncode == 1, done.stdout
    assert "WRONG" in done.stdout


@pytest.mark.fast
@pytest.mark.parametrize("name", CASES)
def test_the_file_is_short_and_holds_only_what_its_edge_needs(name: str) -> None:
    text = text_of(name)
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 120
    assert ("size_t(m)" in text.partition("Ends the program")[0]) == ("bounds" in name)
    assert ("cudaMemset2D" in text) == ("pad" in name)
    assert "{{" not in text
    assert "TILEWRIGHT" not in text


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
@pytest.mark.parametrize("arch", ARCHES)
def test_nvcc_has_no_warnings(arch: str, tmp_path: Path) -> None:
    for number, name in enumerate(CASES):
        (tmp_path / f"{number}.cu").write_text(text_of(name))
        command = ["nvcc", "-O3", "-std=c++17", f"-arch={arch}", "-Wno-deprecated-gpu-targets", "-c", f"{number}.cu"]
        command += ["--compiler-options", "-Wall,-Wextra,-Wshadow", "-o", f"{number}.o"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), name


@pytest.mark.fast
@pytest.mark.parametrize(("config", "shape", "trans", "accuracy", "message"), [
    ("simt", "64", "nn", "ieee", "simt has no plain form (--plain); name a config of naive and tiled"),
    ("tiled", "64", "nt", "ieee", "a plain kernel takes A and B as they are, got trans nt: leave it out"),
    ("tiled", "64", "nn", "normwise", "a plain kernel is ieee, got accuracy normwise: leave it out"),
    ("tiled", "64x0x64", "nn", "ieee", "a plain kernel's shape has sizes above 0, got 64x0x64"),
])  # fmt: skip
def test_a_kernel_without_a_plain_form_is_refused(
    config: str, shape: str, trans: str, accuracy: str, message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        plain(Problem.parse(shape, "float", trans, accuracy), parse(config))
    assert str(raised.value) == message
    assert [name for name, kind in families().items() if kind.plain] == ["naive", "tiled"]
