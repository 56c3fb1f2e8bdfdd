"""Runs the README's first command and the fast tests on the lowest versions that pyproject.toml admits.

    python .ci/lowest.py           # Python and all dependencies at their lowest
    python .ci/lowest.py --each    # each dependency alone at its lowest, beside the newest of the others: minutes

Needs uv. The dependencies are the package's own and those of the extra [test], which holds all that need no GPU.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PYTHON = PROJECT["requires-python"].removeprefix(">=")
INSTALL = ("--quiet", "--editable", ".[test]")
TESTS = "pytest -q -m fast -n auto --dist worksteal"


def first_command() -> str:
    """Command that the README's first line runs once the package is installed."""
    return re.search(r"^    pip install -e \. && (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE)[1]


def lowest() -> dict[str, str]:
    """Lowest admitted version of every dependency that has a minimum."""
    requirements = "\n".join((*PROJECT["dependencies"], *EXTRAS["cluster"], *EXTRAS["test"]))
    names = set(re.findall(r"^([\w-]+)>=", requirements, re.MULTILINE))
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--resolution", "lowest-direct"]
    command += ["--python-version", PYTHON, "--extra", "test", "pyproject.toml"]
    resolved = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    versions = dict(re.findall(r"^([\w-]+)==(\S+)$", resolved, re.MULTILINE))
    return {name: versions[name] for name in sorted(names)}


def run(install: list[str]) -> dict[str, float]:
    """Seconds of installing, the first command and the fast tests in a new environment; raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {"VIRTUAL_ENV": folder, "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}
        variables |= {"TILEWRIGHT_CACHE": f"{folder}/cache", "TILEWRIGHT_STORE": f"{folder}/store"}
        setting, seconds = os.environ | variables, {}
        subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", PYTHON, folder], check=True)
        for command in (["uv", "pip", "install", *INSTALL, *install], first_command().split(), TESTS.split()):
            start = time.perf_counter()
            done = subprocess.run(command, cwd=ROOT, env=setting, check=False, capture_output=True, text=True)
            if done.returncode:
                print(done.stdout[-8000:], done.stderr[-8000:], sep="\n")
            done.check_returncode()
            seconds[command[0]] = time.perf_counter() - start
    return seconds


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--each"]):
        print(__doc__)
        return 2
    versions, failed = lowest(), False
    rows = [([f"{name}=={version}"], f"{name} {version}") for name, version in versions.items()]
    if not arguments:
        print(f"Python {PYTHON}", *(row for _, row in rows), sep=", ")
        rows = [(["--resolution", "lowest-direct"], "all at their lowest")]
    for install, row in rows:
        try:
            seconds = run(install)
        except subprocess.CalledProcessError as problem:
            failed = True
            print(f"FAILED  {row}: {problem.cmd} ended with {problem.returncode}", flush=True)
        else:
            print(f"ok      {row}:", ", ".join(f"{name} {each:.0f} s" for name, each in seconds.items()), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
