"""The modules that a new process imports, and the files that it reads, before its first product."""

import json
import subprocess
import sys
from pathlib import Path

import tilewright

ROOT = Path(tilewright.__file__).parent
PROGRAM = f"""
import builtins, json, sys
from collections import Counter
from pathlib import Path

root, real = Path({str(ROOT)!r}), builtins.__import__
libraries, opened, steps = set(), [], {{}}

def noted(name, names=None, values=None, fromlist=(), level=0):
    if level == 0 and str((names or {{}}).get("__name__")).partition(".")[0] == "tilewright":
        libraries.add(name.partition(".")[0])
    return real(name, names, values, fromlist, level)

def note(step):
    data = (path for path in map(Path, opened) if path.is_relative_to(root) and path.suffix not in (".py", ".pyc"))
    steps[step] = {{
        "modules": [name for name in sys.modules if name.partition(".")[0] == "tilewright"],
        "standard library": sorted(libraries & sys.stdlib_module_names),
        "other libraries": sorted(libraries - sys.stdlib_module_names - {{"tilewright"}}),
        "files": Counter(path.relative_to(root).parent.as_posix() for path in data),
    }}

builtins.__import__ = noted
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)

import tilewright
note("import tilewright")

tilewright.matmul
note("tilewright.matmul")

from tilewright.codegen.problem import Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.store.store import Store
from tilewright.tuner.choose.shortlist import look_up
Store(Path(sys.argv[1])).lookup(KNOWN["nvidia-h200"], Problem(1000, 999, 77), look_up)
note("first look-up")
print(json.dumps(steps))
"""
"""A program that prints, for the end of each step, the imported modules of the package and libraries, and by folder how
often files of the package without Python code were opened."""
LIBRARIES = ["filelock", "jinja2", "numpy", "platformdirs"]
READ = {"configs/tuned": 3, "configs/ranker": 1, "runtime/device/calls": 4}
STEPS = {
    "import tilewright": {"modules": 1, "standard library": 2, "other libraries": [], "files": {}},
    "tilewright.matmul": {"modules": 94, "standard library": 41, "other libraries": LIBRARIES, "files": {}},
    "first look-up": {"modules": 94, "standard library": 41, "other libraries": LIBRARIES, "files": READ},
}
"""Expected numbers of modules of the package and of the standard library, and names of other libraries and files."""


def test_first_use_imports_no_optuna(tmp_path: Path) -> None:
    """Importing optuna takes half a second, and the first use some seconds."""
    program = (
        "import sys, tilewright.tuner.first_use; print('optuna' in sys.modules, 'tilewright.tuner.run' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_no_more_is_imported_and_read_before_the_first_product(tmp_path: Path) -> None:
    """A change that imports or reads less lowers these numbers."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)
    for step, expected in STEPS.items():
        names = {kind: steps[step][kind] for kind in ("modules", "standard library")}
        counts = steps[step] | {kind: len(each) for kind, each in names.items()}
        assert counts == expected, f"{step}: {counts}, expected {expected}; imported are {names}"
