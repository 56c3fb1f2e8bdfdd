"""Builds the source distribution and the wheel, and checks what they hold.

    python .ci/distributions.py CHECKOUT OUTPUT

CHECKOUT is a git checkout in which building may leave files behind, OUTPUT the folder to build into. Needs uv and git.
"""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

LEFT_OUT = ("benchmarks/results/", ".gitignore")
"""Beginnings of the names of tracked files that the source distribution lacks."""
ADDED = ("PKG-INFO", "setup.cfg", ".package/tilewright.egg-info/SOURCES.txt")
"""Files that setuptools adds to the source distribution."""
IN_WHEEL = "*.py py.typed */**/*.py */**/*.jinja configs/ranker/*.npz configs/*/**/*.toml configs/tuned/*.jsonl " \
    "codegen/*.toml runtime/**/*.[ch] benchmarks/suites/*.toml tuner/*/*.cu tuner/*/page.*"  # fmt: skip
"""Patterns of files of the checkout that the wheel holds."""
NOT_IN_WHEEL = ("tests", "docs", "examples", "benchmarks", "build", "dist")
"""Folders whose Python files the wheel lacks."""
LINK = re.compile(r"\]\(([^)\s]+)\)")


def build(source: Path, output: Path, *options: str) -> list[str]:
    """Warnings of a build that must succeed."""
    command = ["uv", "build", "--out-dir", str(output), *options, str(source)]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    log = subprocess.run(command, check=True, env=variables, stdout=-1, stderr=subprocess.STDOUT, text=True).stdout
    return [line for line in log.splitlines() if re.search("warning|deprecat", line, re.IGNORECASE)]


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def in_wheel(checkout: Path) -> set[str]:
    """Names of the files of the checkout as they lie in the wheel."""
    files = {path.relative_to(checkout) for pattern in IN_WHEEL.split() for path in checkout.glob(pattern)}
    packaged = {path for path in files if path.parts[0] not in NOT_IN_WHEEL or path.match("suites/*.toml")}
    shipped = {path for path in packaged if not any(part.startswith(".") for part in path.parts)}
    return {"tilewright/" + path.as_posix().removeprefix("frameworks/") for path in shipped}


def main(checkout: Path, output: Path) -> str:
    """Messages that say what is wrong; none where all is right."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=checkout, check=True, capture_output=True, text=True).stdout
    tracked = {name for name in listed.split("\0") if name}
    expected = in_wheel(checkout)
    warnings = build(checkout, output / "alone", "--wheel") + build(checkout, output)
    (sdist,), (wheel,), (alone,) = output.glob("*.tar.gz"), output.glob("*.whl"), output.glob("alone/*.whl")
    with tarfile.open(sdist) as archive:
        inside = {each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()}
    files = contents(wheel)
    for path, names in ((sdist, inside), (wheel, files)):
        print(f"{path.name}: {len(names)} files, {path.stat().st_size / 1e3:.0f} KB")
    source = {name for name in tracked if not name.startswith(LEFT_OUT)} | set(ADDED)
    (metadata,) = (message_from_bytes(data) for name, data in files.items() if name.endswith("/METADATA"))
    urls = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["urls"]
    base = f"{urls['Source']}/blob/HEAD/"
    links = LINK.findall(metadata.get_payload())
    package = {name for name in files if ".dist-info/" not in name}
    problems = {
        "warnings": warnings,
        "source distribution lacks": source - inside,
        "source distribution holds besides": inside - source,
        "wheel lacks": expected - package,
        "wheel holds besides": package - expected,
        "wheels of the checkout and of the source distribution differ in": {
            name for name, _ in files.items() ^ contents(alone).items()
        },
        "dead links of the description": {
            link
            for link in links
            if not link.startswith(base) or not (checkout / link.removeprefix(base).partition("#")[0]).exists()
        } or (set() if links else {"it has none"}),
        "other addresses": {url for url in urls.values() if not url.startswith(urls["Source"])},
    }  # fmt: skip
    return "\n".join(f"{kind}: {', '.join(sorted(each))}" for kind, each in problems.items() if each)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()) or 0)
