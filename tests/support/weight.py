"""Weight of the checkout: tracked files and megabytes by folder, and lines of code, templates, goldens, tests and docs.

    python tests/support/weight.py

A megabyte is 10^6 bytes. tests/test_weight.py holds the checkout to a budget.
"""

import ast
import io
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = "api.py __init__.py __main__.py cli codegen configs frameworks runtime templates tuner".split()
"""Files and folders at the root that hold the package's Python code."""
_NO_CODE = {
    tokenize.COMMENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER, tokenize.INDENT, tokenize.NEWLINE,
    tokenize.NL,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class File:
    """A tracked file of the checkout."""

    name: str
    """Path relative to the root, with slashes."""
    size: int
    """Bytes."""

    @property
    def top(self) -> str:
        """Folder at the root, or the name of a file that lies there."""
        return self.name.partition("/")[0]

    @property
    def text(self) -> str:
        return (ROOT / self.name).read_text()


def tracked() -> list[File]:
    """Files that git tracks, as they lie in the checkout. Raises CalledProcessError where git refuses."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    return [File(name, (ROOT / name).lstat().st_size) for name in names if name and (ROOT / name).is_file()]


def megabytes(files: Iterable[File]) -> float:
    """Total size of the files."""
    return sum(file.size for file in files) / 1e6


def code_lines(text: str) -> int:
    """Number of lines of code in a Python text: not blank, not only a comment, not a string that stands by itself."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for each in tokens if each.type not in _NO_CODE for line in range(each.start[0], each.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def lines(files: Iterable[File]) -> dict[str, int]:
    """Number of lines of each kind of text, for the product only lines of code."""
    counts = dict.fromkeys(("code of the product", "templates", "goldens", "tests", "docs"), 0)
    for file in files:
        if file.top in PRODUCT and file.name.endswith(".py"):
            counts["code of the product"] += code_lines(file.text)
        elif file.name.endswith(".jinja"):
            counts["templates"] += file.text.count("\n")
        elif file.name.startswith("tests/golden/") and not file.name.endswith(".py"):
            counts["goldens"] += file.text.count("\n")
        elif file.top == "tests" and file.name.endswith((".py", ".cu", ".h")):
            counts["tests"] += file.text.count("\n")
        elif file.name.endswith(".md"):
            counts["docs"] += file.text.count("\n")
    return counts


def main() -> None:
    """Print a table of folders, the heaviest first, and one of lines."""
    files = tracked()
    sizes, numbers = Counter[str](), Counter(file.top for file in files)
    for file in files:
        sizes[file.top] += file.size
    print(f"{'folder':<20}{'MB':>8}{'files':>8}")
    for top, size in sizes.most_common(10):
        print(f"{top:<20}{size / 1e6:8.2f}{numbers[top]:8}")
    print(f"{'all':<20}{megabytes(files):8.2f}{len(files):8}\n\n{'lines':<20}")
    for kind, count in lines(files).items():
        print(f"{kind:<20}{count:8,}")


if __name__ == "__main__":
    main()
