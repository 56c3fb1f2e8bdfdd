"""An editable install, as interpreters and type checkers see it, and a typed program that uses the package."""

import importlib.util
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tilewright
from tilewright.codegen.errors import TilewrightError

pytest.importorskip("setuptools", minversion="77", reason="the build backend needs setuptools 77, as [test] brings it")

ROOT = Path(tilewright.__file__).resolve().parent
NEEDED = (".packaging", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "py.typed", "benchmarks/suites")
HOOK = "import sys; sys.path.insert(0, '.packaging'); import backend; backend.build_editable(sys.argv[1])"
PROGRAM = """
import sys
from importlib.machinery import PathFinder

sys.path.insert(0, sys.argv[1])
package = sys.argv[1] + "/tilewright"
import tilewright.codegen.added
assert tilewright.codegen.added.__file__ == package + "/codegen/added.py"
assert PathFinder.find_spec("tilewright").origin == package + "/__init__.py"
assert PathFinder.find_spec("tilewright.torch", [package]).origin == package + "/torch.py"
print(tilewright.__version__, tilewright.matmul.__name__)
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files of the package, in a folder whose name has a space and a letter that is not in ASCII."""
    copy = tmp_path_factory.mktemp("install") / "a chéckout"
    for room in {file.parent.name for file in ROOT.glob("*/__init__.py")} | {"frameworks", *NEEDED}:
        if (ROOT / room).is_dir():
            shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__", "tuned"))
    for file in (*ROOT.glob("*.py"), *(ROOT / each for each in NEEDED if (ROOT / each).is_file())):
        shutil.copy(file, copy)
    return copy


def install(checkout: Path, folder: Path) -> Path:
    """Build the wheel of an editable install, and return its path."""
    run("-c", HOOK, str(folder), cwd=checkout)
    (wheel,) = folder.glob("*.whl")
    return wheel


def run(*arguments: str, cwd: Path) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_editable_install_is_a_path_entry_to_links(checkout: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(install(checkout, tmp_path)) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (archive.read(name) for name in archive.namelist() if name.endswith("/METADATA"))
    ((name, entry),) = files.items()  # type checkers would not run an import hook
    path = Path(entry.decode().strip())
    assert (Path(name).suffix, path) == (".pth", checkout / ".package")
    package = path / "tilewright"
    assert (package / "py.typed").exists()
    assert not {"tests", "docs", "examples", "build", ".package"} & {each.name for each in package.iterdir()}
    assert all(each.is_symlink() and each.resolve().is_relative_to(checkout) for each in package.iterdir())

    (checkout / "codegen" / "added.py").touch()  # is imported without another install
    assert run("-c", PROGRAM, str(path), cwd=tmp_path) == f"{tilewright.__version__} matmul\n"

    links = re.findall(r"\]\(([^)]+)\)", str(message_from_bytes(metadata).get_payload()))
    assert len(links) > 20
    assert [each for each in links if not each.startswith("https://")] == []


def test_a_second_install_changes_only_changed_links(checkout: Path, tmp_path: Path) -> None:
    install(checkout, tmp_path)
    package = checkout / ".package" / "tilewright"
    before = {each.name: each.lstat().st_ino for each in package.iterdir()}
    (checkout / "removed.py").touch()
    install(checkout, tmp_path)
    assert {each.name for each in package.iterdir()} == {*before, "removed.py"}
    (checkout / "removed.py").unlink()
    install(checkout, tmp_path)
    assert {each.name: each.lstat().st_ino for each in package.iterdir()} == before


# ---- The typed program, whose mistakes are errors at run time too -----------------------------------------------


TYPED_PROGRAM = Path(__file__).parent / "data" / "typed_program.py"
A, B = np.ones((4, 6), np.float32), np.ones((6, 5), np.float32)


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("typed_program", TYPED_PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TYPED = program()
MISTAKES: list[Callable[[], Any]] = TYPED.mistakes(A, B)


@pytest.fixture(autouse=True)
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let NumPy compute products on the processor, so that nothing is compiled."""
    monkeypatch.setenv("TILEWRIGHT_VENDOR", "auto")
    tilewright.clear()


@pytest.mark.fast
def test_the_typed_program_runs(tmp_path: Path) -> None:
    assert (TYPED.products(A, B) == 9).all()  # 0.5 * 6 + 6
    assert (TYPED.kernels(A, B) == 12).all()
    assert sorted(path.name for path in TYPED.files(tmp_path)) == ["my_gemm.cu", "my_gemm.h"]


@pytest.mark.fast
@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_that_type_checkers_report_are_errors(number: int) -> None:
    with pytest.raises((TilewrightError, TypeError, AttributeError)):
        MISTAKES[number]()


@pytest.mark.fast
def test_functions_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(tilewright.tune)) is tilewright.tune


@pytest.mark.fast
def test_all_public_names_are_listed() -> None:
    offered = set(tilewright.__all__)
    assert "DType" in offered
    assert offered <= set(dir(tilewright))
    assert all(hasattr(tilewright, name) for name in offered)
