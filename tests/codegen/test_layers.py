"""Which folders may import which others, and that importing does nothing."""

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
"""Files that import what is not among the dependencies."""


def imports(path: Path) -> Iterator[str]:
    """Absolute names of the modules that a file imports, wherever in it."""
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
    """Place of a tilewright module in the order of the layers; the public face is above all of them."""
    parts = module.split(".")
    return LAYERS.index(parts[1]) if len(parts) > 1 and parts[1] in LAYERS else len(LAYERS)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_go_down_the_layers(path: Path) -> None:
    own = layer("tilewright." + ".".join(path.relative_to(ROOT).with_suffix("").parts))
    # `tilewright` alone is the version and the public face, `configs` holds data: any layer may read them.
    seen = [module for module in imports(path) if module.startswith("tilewright.") and "configs" not in module]
    assert [module for module in seen if layer(module) > own] == []


@pytest.mark.parametrize("path", [path for path in FILES if path.is_relative_to(ROOT / "codegen")], ids=name)
def test_codegen_needs_the_standard_library_and_jinja2_alone(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "jinja2", "tilewright"}
    assert [module for module in imports(path) if module.split(".")[0] not in allowed] == []


FAMILIES_MAY_BE_NAMED = (
    "codegen/families/", "codegen/mechanisms/", "tuner/choose/batches.py", "tuner/choose/features.py",
)  # fmt: skip
GROUPS = {"tile", "pipeline", "split", "epilogue", "launch"}
SHARED = {"edge", "mode", "parts", "reduce", "small"}
"""Parameters that are no family's own: what happens at the edges, and how CTAs share out the work; and a family whose
name a suite has too."""


def family_words(path: Path) -> set[str]:
    """Families and their parameters that a file names: as text, as a field of a group, or as a keyword."""
    words = {*families(), *(leaf.name for family in families().values() for leaf in family.leaves())} - SHARED
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    examples = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if node in examples:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # The library's `load` and the worker's words are other words than the parameter.
            found |= (words - {"load"}) & {node.value, *re.findall(r"(\w+)(?=:\d|=\w)", node.value)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr in GROUPS:
            found |= words & {node.attr}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("changed", "build", "of"):
            found |= words & {keyword.arg for keyword in node.keywords if keyword.arg}
    return found


@pytest.mark.parametrize("path", [p for p in FILES if not name(p).startswith(FAMILIES_MAY_BE_NAMED)], ids=name)
def test_a_family_is_known_to_its_module_and_its_template_alone(path: Path) -> None:
    assert family_words(path) == set()


def test_the_search_for_names_of_families_finds_them() -> None:
    seen = family_words(ROOT / "codegen/families/simt.py")
    assert {"simt", "thread_m", "block_m", "stages"} <= seen


@pytest.mark.parametrize("path", FILES, ids=name)
def test_libraries_are_imported_in_their_one_place(path: Path) -> None:
    for module in imports(path):
        assert name(path) in ONLY_IN.get(module.split(".")[0], {name(path)}), module


@pytest.mark.parametrize("path", FILES, ids=name)
def test_environment_variables_are_read_in_one_place(path: Path) -> None:
    words = {"environ", "getenv", "environb", "putenv"}
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute | ast.alias)]
    used = {node.attr if isinstance(node, ast.Attribute) else node.name for node in found} & words
    assert not used or name(path) == "runtime/settings.py"


OPENS = {
    "cli/app.py": "nothing, in place of an output that is gone",
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
    "tuner/recording/journal.py": "a file that is written, once the reader had it",
    "tuner/choose/ranker.py": "the package's own",
    "tuner/cluster/link.py": "the system's",
}
"""Files that open others without the one reader, and what those are."""


def opens(path: Path) -> bool:
    """Whether a file opens others."""
    functions = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = {getattr(each, "attr", None) or getattr(each, "id", "") for each in functions}
    return bool(names & {"read_text", "read_bytes", "fdopen"}) or any(_opened(each) for each in functions)


def _opened(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute) or function.attr != "open":
        return False
    return ast.unparse(function.value) not in ("self", "worker")  # they open devices


def test_files_of_others_are_read_in_one_place() -> None:
    """A pipe, a device or gigabytes in the place of any other file would end in waiting for ever."""
    assert {name(path) for path in FILES if opens(path)} == {*OPENS}


def locks(path: Path) -> set[str]:
    """Locks of Python's own that a file makes; until Python 3.12 a cached property has one."""
    words = {"Lock", "RLock", "Condition", "Semaphore", "cached_property"}
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in ("threading", "functools", "multiprocessing"):
            found |= {alias.name for alias in node.names} & words
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("threading", "functools"):
            found |= {node.attr} & words
    return found


def test_locks_are_made_where_a_fork_renews_them() -> None:
    made = {name(path): found for path in FILES if (found := locks(path))}
    # A bundle's property is computed at once: it waits for nothing and calls nobody.
    assert made == {"runtime/locks.py": {"RLock", "cached_property"}, "codegen/bundle.py": {"cached_property"}}


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
