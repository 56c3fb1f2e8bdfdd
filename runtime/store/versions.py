"""Versions that a tuned record depends on. If one changes, the record is verified again before it is used."""

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

from ..device.protocol import Compiler, DeviceInfo


def package_version() -> str:
    """The installed version; `0+unknown` for a checkout that is not installed."""
    try:
        return metadata.version(__package__.partition(".")[0])
    except metadata.PackageNotFoundError:
        return "0+unknown"


@cache
def generator_version() -> str:
    """The package's version and a digest of its kernels' templates, so that a changed template is a new version."""
    folder, digest = Path(__file__).parents[2] / "templates", hashlib.sha256()
    paths = [path.relative_to(folder) for path in folder.rglob("*.jinja")]
    for path in sorted(paths, key=lambda path: path.parts):
        if path.parts[0] != "emit":  # launchers change no kernel
            digest.update(path.as_posix().encode() + b"\0" + (folder / path).read_bytes() + b"\0")
    return f"{package_version()}+{digest.hexdigest()[:12]}"


def versions_of(info: DeviceInfo, compiler: Compiler) -> tuple[tuple[str, str], ...]:
    """Generator, driver and compiler, sorted by name."""
    return ("compiler", compiler.identity), ("driver", info.driver), ("generator", generator_version())
