"""Imports between folders and of libraries, other rules on all files, and importing without side effects."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tilewright
from tilewright.codegen.families import families

ROOT = Path(tilewright.__file__).resolve().parent
LAYERS = ("templates", "codegen", "runtime", "tuner", "cli")
FOLDERS = [ROOT / layer for layer in LAYERS]
FILES = sorted([*ROOT.glob("*.py"), *(path for folder in FOLDERS for path in folder.rglob("*.py"))])
ONLY_IN = {
    "optuna": {*(f"tuner/search/{name}.py" for name in ("local", "sampler", "study")), "tuner/report/importance.py"},
    "cupy": {"runtime/device/cuda.py"},
    "cupy_backends": {"runtime/device/cuda.py"},
    "nvmath": {"runtime/device/cublaslt.py"},
    "torch": {"frameworks/torch.py"},
    "matplotlib": {"tuner/bench/plot.py", "tuner/report/charts.py"},
    "distributed": {f"tuner/cluster/{name}.py" for name in ("client", "jobs", "link", "models", "worker")},
    "dask": {"tuner/cluster/link.py", "tuner/cluster/worker.py"},
}

NEEDS_MORE = {"runtime/device/cuda.py", "frameworks/torch.py", *ONLY_IN["distributed"]}
"""Files that import packages which are not among the dependencies."""


def imports(path: Path) -> Iterator[str]:
    """Absolute names of the modules that a file imports, in functions too."""
    package = ("tilewright", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*base, *(node.module or "").split("."))).strip(".")
            yield stem
            if base == ("tilewright",) and not node.module:
                yield from (f"tilewright.{alias.name}" for alias in node.names)


def layer(module: str) -> int:
    """Index of the layer of a tilewright module; the public interface is above all layers."""
    parts = module.split(".")
    return LAYERS.index(parts[1]) if len(parts) > 1 and parts[1] in LAYERS else len(LAYERS)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_go_down_the_layers(path: Path) -> None:
    own = layer("tilewright." + ".".join(path.relative_to(ROOT).with_suffix("").parts))
    # Any layer may import `tilewright` itself, for the version, and `configs`, which holds data.
    modules = [module for module in imports(path) if module.startswith("tilewright.") and "configs" not in module]
    assert [module for module in modules if layer(module) > own] == []


@pytest.mark.parametrize("path", [path for path in FILES if path.is_relative_to(ROOT / "codegen")], ids=name)
def test_codegen_needs_the_standard_library_and_jinja2_alone(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "jinja2", "tilewright"}
    assert [module for module in imports(path) if module.split(".")[0] not in allowed] == []


FAMILIES_MAY_BE_NAMED = (
    "codegen/families/", "codegen/mechanisms/", "tuner/choose/batches.py", "tuner/choose/features.py",
)  # fmt: skip
GROUPS = {"tile", "pipeline", "split", "epilogue", "launch"}
SHARED = {"edge", "mode", "parts", "reduce", "small"}
"""Parameters of several families, for edges and for ways to share out work, and the family `small`, whose name a suite
has too."""


def family_words(path: Path) -> set[str]:
    """Names of families and parameters in a file: in strings, as fields of a group, or as keywords."""
    words = {*families(), *(leaf.name for family in families().values() for leaf in family.leaves())} - SHARED
    names: set[str] = set()
    tree = ast.parse(path.read_text())
    examples = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if node in examples:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # `load` is also the name of a function of the library and of a command to a worker.
            names |= (words - {"load"}) & {node.value, *re.findall(r"(\w+)(?=:\d|=\w)", node.value)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr in GROUPS:
            names |= words & {node.attr}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("changed", "build", "of"):
            names |= words & {keyword.arg for keyword in node.keywords if keyword.arg}
    return names


@pytest.mark.parametrize("path", [p for p in FILES if not name(p).startswith(FAMILIES_MAY_BE_NAMED)], ids=name)
def test_a_family_is_named_only_in_its_module_and_template(path: Path) -> None:
    assert family_words(path) == set()


def test_the_search_for_names_of_families_finds_them() -> None:
    names = family_words(ROOT / "codegen/families/simt.py")
    assert {"simt", "thread_m", "block_m", "stages"} <= names


@pytest.mark.parametrize("path", FILES, ids=name)
def test_each_library_is_imported_in_its_files_only(path: Path) -> None:
    for module in imports(path):
        assert name(path) in ONLY_IN.get(module.split(".")[0], {name(path)}), module


@pytest.mark.parametrize("path", FILES, ids=name)
def test_environment_variables_are_read_in_one_place(path: Path) -> None:
    words = {"environ", "getenv", "environb", "putenv"}
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute | ast.alias)]
    used = {node.attr if isinstance(node, ast.Attribute) else node.name for node in nodes} & words
    assert not used or name(path) == "runtime/settings.py"


OPENS = {
    "cli/app.py": "the null device, in place of an output that is gone",
    "cli/trials.py": "a file that is written",
    "codegen/emitted.py": "a file that is written",
    "codegen/reading.py": "the reader",
    "codegen/reserved.py": "the package's own",
    "runtime/device/host_compiler.py": "the system's, the package's own, what a compiler has just made, and memory",
    "runtime/device/launcher.py": "the package's own",
    "runtime/file_lock.py": "the system's",
    "runtime/files.py": "a file that is written",
    "runtime/store/store.py": "the package's own",
    "runtime/store/versions.py": "the package's own",
    "tuner/bench/concatenated.py": "the package's own",
    "tuner/bench/suites.py": "the package's own",
    "tuner/search/candidates.py": "the package's own",
    "tuner/recording/journal.py": "a file that is written, after the reader read it",
    "tuner/choose/ranker.py": "the package's own",
    "tuner/cluster/link.py": "the system's",
}
"""Files that open other files without the reader `codegen/reading.py`, and the files that they open."""


def opens(path: Path) -> bool:
    """Whether a file opens other files."""
    functions = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = {getattr(each, "attr", None) or getattr(each, "id", "") for each in functions}
    return bool(names & {"read_text", "read_bytes", "fdopen"}) or any(_opened(each) for each in functions)


def _opened(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute) or function.attr != "open":
        return False
    return ast.unparse(function.value) not in ("self", "worker")  # these open devices


def test_foreign_files_are_read_in_one_place() -> None:
    """Other code would wait for ever where a pipe, a device or gigabytes take the place of a file."""
    assert {name(path) for path in FILES if opens(path)} == {*OPENS}


def locks(path: Path) -> set[str]:
    """Locks of the standard library that a file creates; until Python 3.12 a cached property has one."""
    words = {"Lock", "RLock", "Condition", "Semaphore", "cached_property"}
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in ("threading", "functools", "multiprocessing"):
            names |= {alias.name for alias in node.names} & words
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("threading", "functools"):
            names |= {node.attr} & words
    return names


def test_locks_are_made_where_a_fork_renews_them() -> None:
    by_file = {name(path): names for path in FILES if (names := locks(path))}
    # The property of a bundle is computed at once and takes no other lock.
    assert by_file == {"runtime/locks.py": {"RLock", "cached_property"}, "codegen/bundle.py": {"cached_property"}}


def test_importing_makes_no_file_and_needs_no_device(tmp_path: Path) -> None:
    modules = [
        ".".join(("tilewright", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for path in FILES
        if path.name != "__main__.py" and name(path) not in NEEDS_MORE
    ]
    program = f"""import importlib, sys
for module in {modules!r}: importlib.import_module(module)
print({{"cupy", "dask", "distributed"}} & set(sys.modules))"""
    variables = {
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "set()"), done.stderr
    assert list(tmp_path.iterdir()) == []
