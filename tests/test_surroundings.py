"""Surroundings in which a process starts: users, locales, compilers, folders and options of Python.

Each row is one process, which works, or ends with one line that says what is wrong and what to do.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tilewright

PACKAGE = Path(tilewright.__path__[0])
UID = 54321
"""Number of a user that no system has."""
LATIN = os.fsdecode(b"d\xe9p")
"""Name of a folder that is not UTF-8, as Python spells it."""
ACCENT = "d\u00e9p \u2713"

PRODUCT = """
import numpy, tilewright
a = numpy.ones((4, 4), "f4")
print(tilewright.matmul(a, a, device="host", vendor="never")[0, 0])
"""
LAUNCHER = """
from tilewright.runtime.device import launcher
print(launcher.described())
"""
CACHE_MODE = """
import os
print(oct(os.stat(os.environ["TILEWRIGHT_CACHE"]).st_mode & 0o777))
"""
IDENTITY = """
from tilewright.runtime.device.host_compiler import HostCompiler
from tilewright.runtime.device.launcher import ExtensionCompiler
print(HostCompiler().identity, ExtensionCompiler().identity)
"""
COMMAND = "from tilewright.cli import main; main()"
NAMELESS = """
import pwd

def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = getpwuid
"""
"""A module that hides the user's entry in the user database. A real user without one often cannot start this Python."""

TUNE = ("tune", "--shape", "8", "--config", "naive:8x32", "--device", "host", "--seconds", "20")
ALONE = (*TUNE, "--no-isolation")
SEARCH = ("tune", "--shape", "8", "--trials", "1", "--device", "host", "--no-isolation")
EMIT = ("emit", "--arch", "sm_90a", "--config", "naive:8x32", "--name", "gemm")
NO_CACHE = r"cannot use the cache \(this user has no home folder\): .*; TILEWRIGHT_CACHE\s+names another folder"
UNSET = {"HOME": None, "TILEWRIGHT_STORE": None, "TILEWRIGHT_CACHE": None}
NO_HOME = {**UNSET, "PYTHONPATH": "{here}/site:{path}"}
IN_C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
BLANKS = {"PATH": "", "CXX": "{here}/my tools/c++", "CC": "{here}/my tools/cc"}
ARGUMENTS = {"PATH": "", "CXX": "'{here}/my tools/c++' -DX=1", "CC": "'{here}/my tools/cc' -DX=1"}


def nothing(here: Path) -> None:
    """Prepare nothing."""


def nameless(here: Path) -> None:
    """Let every Python start as a user without an entry in the user database."""
    (here / "site").mkdir()
    (here / "site/sitecustomize.py").write_text(NAMELESS)


def folder(name: str) -> Callable[[Path], None]:
    """Make a folder that holds a suite and space files."""

    def prepare(here: Path) -> None:
        shutil.copytree(PACKAGE / "configs/spaces", here / name / "spaces")
        (here / name / "suite.json").write_text('["8"]')

    return prepare


def tools(*names: str, needs: str = "") -> Callable[[Path], None]:
    """Make compilers of these names, which end with 3 unless `needs` is among their arguments."""

    def prepare(here: Path) -> None:
        for name in names:
            path = here / name
            path.parent.mkdir(exist_ok=True)
            compiler = "c++" if "++" in name else "cc"
            checked = f'case "$*" in *{needs}*) ;; *) exit 3 ;; esac'
            path.write_text(f"#!/bin/sh\n{checked}\nPATH='{os.environ['PATH']}' exec {shutil.which(compiler)} \"$@\"\n")
            path.chmod(0o755)

    return prepare


def package(here: Path) -> None:
    """Make a folder whose name is not UTF-8, with the package in it."""
    (here / LATIN).mkdir()
    (here / LATIN / "tilewright").symlink_to(PACKAGE)


@dataclass(frozen=True)
class Surrounding:
    """How a process is started, and how it ends. In all texts `{here}` stands for the folder of the test."""

    name: str
    action: str | tuple[str, ...] = PRODUCT
    """Text of a program, or arguments of `tilewright`."""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Environment variables that are set, or removed where the value is None."""
    prepare: Callable[[Path], None] = nothing
    """Function that is called first, with the folder of the test."""
    says: str = r"^4\.0$"
    """Regular expression for a part of the output."""
    status: int = 0
    """Exit status. Where it is not 0, the output is one line."""
    python: tuple[str, ...] = ()
    """Options of Python."""
    before: tuple[str, ...] = ()
    """Command that starts the process."""
    current: str = "."
    """Current folder, relative to the folder of the test."""
    made: frozenset[str] = frozenset()
    """Names of files and folders that the process creates in the current folder."""


SURROUNDINGS = (
    # Users and their folders.
    Surrounding("no home", PRODUCT, NO_HOME, nameless, rf"(?s){NO_CACHE}.*^4\.0$"),
    Surrounding("no home, tune", ALONE, NO_HOME, nameless, "no home folder.*: name one by --store or TILEWRIGHT_ST", 1),
    Surrounding("no home, tune with a store", (*ALONE, "--store", "st"), NO_HOME, nameless, rf"(?s){NO_CACHE}.*winner",
                made=frozenset({"st"})),
    Surrounding("no home, show", ("show", "--shape", "8"), NO_HOME, nameless, "^nothing is stored for 8x8x8"),
    Surrounding("a real user without an entry", PRODUCT, UNSET, says=rf"(?s){NO_CACHE}.*^4\.0$",
                before=("setpriv", f"--reuid={UID}", "--clear-groups")),
    Surrounding("an empty home", PRODUCT, {**UNSET, "HOME": "", "XDG_CACHE_HOME": "{cache}"}),
    Surrounding("a home that is a file", PRODUCT, {**UNSET, "HOME": "/etc/passwd"},
                says=r"(?s)cannot use the cache /etc/passwd/.cache/tilewright \(Not a directory.*^4\.0$"),
    Surrounding("a home that cannot be made", ALONE, {**UNSET, "HOME": "/proc/none"}, status=1,
                says=r"cannot write /proc/none/\S+: .*; --store or TILEWRIGHT_STORE names another folder"),
    Surrounding("a relative XDG_CACHE_HOME", PRODUCT, {"TILEWRIGHT_CACHE": None, "XDG_CACHE_HOME": "relative"}),
    Surrounding("no TMPDIR", TUNE, {"TMPDIR": "{here}/none"}, says="winner"),
    Surrounding("a TMPDIR with blanks", PRODUCT, {"TMPDIR": "{here}/a b", "TILEWRIGHT_CACHE": "/dev/null"},
                lambda here: (here / "a b").mkdir(), says=r"(?s)cannot use the cache /dev/null.*^4\.0$"),
    Surrounding("umask 000", PRODUCT + CACHE_MODE, {"TILEWRIGHT_CACHE": "{here}/new"}, says=r"^4\.0\n0o700$",
                before=("sh", "-c", 'umask 000; exec "$@"', "sh"), made=frozenset({"new"})),
    Surrounding("umask 077", ALONE, says="winner", before=("sh", "-c", 'umask 077; exec "$@"', "sh")),
    # Compilers.
    Surrounding("arguments in CXX and CC", PRODUCT + LAUNCHER, ARGUMENTS,
                tools("my tools/c++", "my tools/cc", needs="-DX=1"), r"^4\.0\nC, "),
    Surrounding("blanks in CXX and CC", IDENTITY, BLANKS, tools("my tools/c++", "my tools/cc"),
                r"/my tools/c\+\+ -x .*/my tools/cc -x "),
    Surrounding("CXX that is absent", ALONE, {"CXX": "icpx -O2"}, status=2,
                says=r"^tilewright: CXX is 'icpx -O2', and there is no program 'icpx': name a comp.* or unset CXX$"),
    Surrounding("CXX with half a quote", ALONE, {"CXX": "g++ '-O2"}, status=2,
                says=r"^tilewright: CXX must be a compiler and its arguments, got \"g\+\+ '-O2\": No closing quo"),
    Surrounding("compilers with versions alone", IDENTITY, {"PATH": "{here}/bin"},
                tools("bin/g++-9", "bin/g++-12", "bin/gcc-12", "bin/clang-9"), r"/bin/g\+\+-12 .*/bin/gcc-12 "),
    Surrounding("no PATH", PRODUCT, {"PATH": None, "CXX": shutil.which("c++"), "TILEWRIGHT_CACHE": "{here}/new"},
                made=frozenset({"new"})),
    Surrounding("clang alone", IDENTITY, {"PATH": "{here}/bin"}, tools("bin/clang++", "bin/clang"),
                r"/bin/clang\+\+ .*/bin/clang "),
    # Names and locales.
    Surrounding("a current folder that is not UTF-8", PRODUCT, {"TILEWRIGHT_CACHE": "cache"}, folder(LATIN),
                current=LATIN, made=frozenset({"cache"})),
    Surrounding("a package that is not UTF-8", PRODUCT, {"PYTHONPATH": f"{{here}}/{LATIN}:{{path}}"}, package),
    Surrounding("a suite and an output that are not UTF-8",
                (*EMIT, "--suite", f"{LATIN}/suite.json", "-o", f"{LATIN}/out"), {}, folder(LATIN),
                r"wrote d\\udce9p/out/gemm\.cu"),
    Surrounding("a suite that is not UTF-8 and not there", (*EMIT, "--suite", f"{LATIN}/suite.json"), status=2,
                says=r"cannot read the suite d\\udce9p/suite\.json: No such file or directory; name another file$"),
    Surrounding("results and spaces that are not UTF-8",
                (*SEARCH, "--spaces", f"{LATIN}/spaces", "--store", f"{LATIN}/store", "--csv", f"{LATIN}/x.csv"), {},
                folder(LATIN), "winner"),
    Surrounding("the C locale", (*ALONE, "--store", f"{ACCENT}/store", "--json", f"{ACCENT}/x.json"), IN_C,
                folder(ACCENT), "winner"),
    Surrounding("the C locale, emit", (*EMIT, "--suite", f"{ACCENT}/suite.json"), IN_C, folder(ACCENT), "wrote gemm.cu",
                made=frozenset({"gemm.cu", "gemm.h"})),
    Surrounding("twenty columns of ASCII", ALONE, {"PYTHONIOENCODING": "ascii", "TERM": "dumb", "COLUMNS": "20"},
                says="winner"),
    # Options of Python.
    Surrounding("python -OO", ("tune", "--help"), python=("-OO",), says="--shape"),
    Surrounding("python -W error", ALONE, python=("-W", "error", "-X", "dev"), says="winner"),
    Surrounding("python -I", TUNE, python=("-I", "-B"), says="winner"),
)  # fmt: skip


@pytest.mark.parametrize("row", SURROUNDINGS, ids=lambda row: row.name)
def test_a_process_works_or_says_why_not(row: Surrounding, tmp_path: Path, session_cache: Path) -> None:
    here, current = tmp_path / "here", tmp_path / "here" / row.current
    here.mkdir()
    row.prepare(here)
    places = {
        "here": here, "cache": session_cache, "path": f"{PACKAGE.parent}:{os.environ.get('PYTHONPATH', '')}"
    }  # fmt: skip
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": "{path}", "HOME": str(tmp_path), "TILEWRIGHT_CACHE": "{cache}",
        "TILEWRIGHT_STORE": str(tmp_path / "store"), "OPENBLAS_NUM_THREADS": "1", **row.variables,
    }  # fmt: skip
    variables = {name: value.format_map(places) for name, value in environment.items() if value is not None}
    program = row.action if isinstance(row.action, str) else COMMAND
    if "-I" in row.python:
        program = f"import sys; sys.path[:] = {sys.path!r}\n{program}"
    arguments = () if isinstance(row.action, str) else row.action

    def ran(program: str) -> "subprocess.CompletedProcess[bytes]":
        command = [*row.before, sys.executable, *row.python, "-c", program, *arguments]
        return subprocess.run(command, env=variables, cwd=current, capture_output=True, timeout=100, check=False)

    if "setpriv" in row.before and (os.geteuid() or ran("import tilewright.runtime.product.matmul").returncode):
        pytest.skip("root alone can start a process as another user, who must be able to read this Python")
    before = set(os.listdir(current))
    done = ran(program)
    printed = (done.stderr + done.stdout).decode(errors="backslashreplace")
    assert done.returncode == row.status, printed
    assert re.search(row.says, printed, re.MULTILINE), printed
    assert "Traceback" not in printed
    assert row.status == 0 or printed.count("\n") == 1, printed
    assert set(os.listdir(current)) - before == row.made
