"""Which devices a command is about that needs none of them here: by architecture, by key, or the one of the machine."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..codegen.arch import Arch, arch_named
from ..codegen.errors import check, meant
from ..runtime.device.known import KNOWN, of_arch, typical
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.store import Store
from . import options
from .commands import GPUS


def targets(
    arches: Sequence[str], keys: Sequence[str], device: str, store: Store
) -> tuple[list[DeviceInfo], list[str]]:
    """The devices of these architectures and keys, else the one that `device` selects, and what to tell of the choice.
    Raises ConfigError, DeviceError."""
    if not arches and not keys:
        return [options.chosen(device)], []
    recorded = Counter(record.device for record in store.records())
    rows = [arch_named(arch) for arch in arches]
    check(all(not row.is_host for row in rows), f"--arch must be one of {GPUS}, got 'host'")
    found = [_keyed(key, tuple(recorded), [row.name for row in rows]) for key in keys]
    notes = []
    for row in dict.fromkeys(rows):
        if all(info.arch != row for info in found):
            info, note = _of_arch(row, recorded)
            found.append(info)
            notes.append(note)
    return found, notes


def _keyed(key: str, recorded: Sequence[str], arches: Sequence[str]) -> DeviceInfo:
    if key in KNOWN:
        return KNOWN[key]
    known = ", ".join(sorted({*recorded, *KNOWN} - {key for key in recorded if key.startswith("host")}))
    check(key in recorded, f"--device-key must be one of {known}, got {key!r}{meant(key, known.split(', '))}")
    check(
        len(arches) == 1, f"--device-key {key}: its facts do not ship with tilewright; name its architecture by --arch"
    )
    return replace(typical(arch_named(arches[0])), name=key)


def _of_arch(arch: Arch, recorded: dict[str, int]) -> tuple[DeviceInfo, str]:
    """The device of an architecture that has most records, else the one that stands for it, and which that is."""
    having = of_arch(arch, recorded)
    if not having:
        info = typical(arch)
        return info, f"nothing was tuned for {arch.name}: a model chooses as for {info.key}"
    others = ", ".join(info.key for info in having[1:])
    more = f" (--device-key names another: {others})" if others else ""
    return having[0], f"{arch.name}: records of {having[0].key}{more}"
