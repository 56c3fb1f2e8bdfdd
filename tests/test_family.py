"""A family is added by a module and a template. A copy of `tiled` under another name is tuned, loaded and emitted
without a change of other files."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tilewright

ROOT = Path(tilewright.__file__).resolve().parent
FOLDERS = ("cli", "codegen", "configs", "runtime", "templates", "tuner", "benchmarks/suites")

PROGRAM = """
import json, sys, tilewright
from pathlib import Path
store, out = map(Path, sys.argv[1:])
result = tilewright.tune(tilewright.Problem(40, 24, 56), device="host", trials=40, seconds=60, store=store,
                         isolation=False, spaces=Path("spaces"), keep=2)
kernel = tilewright.load(40, 24, 56, device="host", store=store)
import numpy as np
a, b = np.random.default_rng(1).random((40, 56), np.float32), np.random.default_rng(2).random((56, 24), np.float32)
error = float(abs(kernel(a, b) - a @ b).max())
from tilewright.runtime.device.known import target_named
files = tilewright.emit(tilewright.Served(kernel.problem, kernel.config, target_named("sm_80")), "squares").write(out)
print(json.dumps({"best": str(result.best.config), "loaded": str(kernel.config), "origin": kernel.origin,
                  "error": error, "files": [file.name for file in files]}))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package that has one more family."""
    home = tmp_path_factory.mktemp("package")
    package = home / "tilewright"
    package.mkdir()
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, package / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.glob("*.py"):
        shutil.copy(file, package)
    for path, texts in {
        "codegen/families/tiled.py": (("tiled", "squared"), ("Tiled", "Squared"), ("order = 1", "order = 9")),
        "templates/tiled.cu.jinja": (),
    }.items():
        text = (ROOT / path).read_text()
        for old, new in texts:
            assert old in text
            text = text.replace(old, new)
        (package / path.replace("tiled", "squared")).write_text(text)
    return home


def run(package: Path, *command: str, folder: Path) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment = {**inherited, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_family_of_two_files_and_a_space_is_tuned_kept_loaded_and_emitted(package: Path, tmp_path: Path) -> None:
    (tmp_path / "spaces").mkdir()
    space = 'family = "squared"\n[parameters]\ntile_width = [8, 16]\nunroll = [8]\n'
    (tmp_path / "spaces" / "mine.toml").write_text(space)
    (tmp_path / "program.py").write_text(PROGRAM)
    output = json.loads(run(package, "program.py", "store", "out", folder=tmp_path).splitlines()[-1])
    assert output["best"].startswith("squared:")
    assert output["loaded"] == output["best"]
    assert output["origin"] == "exact"
    assert output["error"] < 1e-4
    assert output["files"] == ["squares.cu", "squares.h"]
    assert "gemm_squared_f32_nn" in (tmp_path / "out" / "squares.cu").read_text()
    shown = run(package, "-m", "tilewright", "show", "--store", "store", "--dtype", "float", folder=tmp_path)
    assert "squared:" in shown


def test_the_family_is_searched_with_the_others_where_no_space_is_named(package: Path, tmp_path: Path) -> None:
    program = """
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.detect import choose
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.shortlist import shortlist
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.study import local_search
problem, info = Problem(40, 24, 56), choose("host")
listed = candidates(Forecast(problem, info), read_spaces(None)).configs
search = local_search(Forecast(problem, info), [choice.config for choice in shortlist(problem, info, (), 240)], 0)
grown = [search.ask() for _ in range(40)]
for configs in (listed, grown):
    print(*sorted({config.family for config in configs}))
"""
    (tmp_path / "program.py").write_text(program)
    listed, grown = run(package, "program.py", folder=tmp_path).splitlines()
    assert "squared" in listed.split()
    assert "squared" in grown.split()


def test_the_family_of_the_documents_works(tmp_path: Path) -> None:
    """With the files of the page added to package and tests, the family's own tests pass and a search finds it."""
    package = tmp_path / "tilewright"
    ignored = shutil.ignore_patterns("__pycache__", ".*", "docs", "golden", "results")
    shutil.copytree(ROOT, package, ignore=ignored)
    page = (ROOT / "docs" / "adding-a-family.md").read_text()
    files = re.findall(r"^`([\w/.]+)`:[^`].*?^```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [name.rpartition(".")[2] for name, _ in files] == ["py", "jinja", "toml", "py"]
    for name, text in files:
        (package / name).write_text(text)
    tests = [*"-m pytest -q -p no:cacheprovider".split(), files[-1][0]]
    passed = run(tmp_path, *tests, folder=package)
    assert re.search(r"^\d\d passed, \d+ deselected", passed, re.MULTILINE), passed
    shutil.copytree(package / "configs" / "spaces", tmp_path / "spaces")
    for file in (tmp_path / "spaces").glob("[!c]*.toml"):
        file.unlink()
    command = "tune --shape 64x48x32 --device host --spaces spaces --trials 2 --store store".split()
    assert "winner: column:" in run(tmp_path, "-m", "tilewright", *command, folder=tmp_path)
