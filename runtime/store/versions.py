"""What a tuned record depends on: if one of these changes, it is checked again before it is used."""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import metadata, resources
from importlib.resources.abc import Traversable

from ..device.protocol import Compiler, DeviceInfo


def package_version() -> str:
    """The version that was installed; a checkout that is used from where it lies has none."""
    try:
        return metadata.version(__package__.partition(".")[0])
    except metadata.PackageNotFoundError:
        return "0+unknown"


@cache
def generator_version() -> str:
    """The package's version and a digest of its templates, so that a changed template is a new version."""
    package = __package__.partition(".")[0]
    digest = hashlib.sha256()
    for name, text in _templates(resources.files(package).joinpath("templates"), ""):
        digest.update(name.encode() + b"\0" + text + b"\0")
    return f"{package_version()}+{digest.hexdigest()[:12]}"


def _templates(folder: Traversable, place: str) -> Iterator[tuple[str, bytes]]:
    """Names and texts of the kernels' templates in a folder and those below, sorted; those of launchers change no
    kernel."""
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
