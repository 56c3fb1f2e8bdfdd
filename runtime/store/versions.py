"""Versions that a tuned record depends on. If one changes, the record is verified again before it is used."""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import metadata, resources
from importlib.resources.abc import Traversable

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
    package = __package__.partition(".")[0]
    digest = hashlib.sha256()
    for name, text in _templates(resources.files(package).joinpath("templates"), ""):
        digest.update(name.encode() + b"\0" + text + b"\0")
    return f"{package_version()}+{digest.hexdigest()[:12]}"


def _templates(folder: Traversable, place: str) -> Iterator[tuple[str, bytes]]:
    """Names and texts of the templates in a folder and those below, sorted. The ones of launchers are left out, as they
    change no kernel."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name != "emit":
            yield from _templates(entry, f"{place}{entry.name}/")
        elif entry.name.endswith(".jinja"):
            yield f"{place}{entry.name}", entry.read_bytes()


def versions_of(info: DeviceInfo, compiler: Compiler) -> tuple[tuple[str, str], ...]:
    """Generator, driver and compiler, sorted by name."""
    return (
        ("compiler", compiler.identity),
        ("driver", info.driver),
        ("generator", generator_version()),
    )
