"""What a tuned record depends on: if one of these changes, it is checked again before it is used."""

import hashlib
from functools import cache
from importlib import metadata, resources

from ..device.protocol import Compiler, DeviceInfo

__all__ = ["generator_version", "versions_of"]


@cache
def generator_version() -> str:
    """The package's version and a digest of its templates, so that a changed template is a new version."""
    package = __package__.partition(".")[0]
    digest = hashlib.sha256()
    folder = resources.files(package).joinpath("templates")
    parts = folder.joinpath("parts")
    for file in sorted((*folder.iterdir(), *parts.iterdir()), key=lambda entry: entry.name):
        if file.name.endswith(".jinja"):
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return f"{metadata.version(package)}+{digest.hexdigest()[:12]}"


def versions_of(info: DeviceInfo, compiler: Compiler) -> tuple[tuple[str, str], ...]:
    """Generator, driver and compiler, sorted by name."""
    return (
        ("compiler", compiler.identity),
        ("driver", info.driver),
        ("generator", generator_version()),
    )
