"""Target devices of commands that need no device here: by architecture, by key, or this machine's."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..codegen.arch import Arch, arch_named
from ..codegen.errors import check, nearest_of
from ..runtime.device.detect import choose
from ..runtime.device.known import KNOWN, of_arch, typical
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.store import Store
from .commands import GPUS


def targets(
    arches: Sequence[str], keys: Sequence[str], device: str, store: Store
) -> tuple[list[DeviceInfo], list[str]]:
    """The devices of these architectures and keys, else the one that `device` selects, and notes on the choice. Raises
    ConfigError and DeviceError."""
    if not arches and not keys:
        return [choose(device)], []
    recorded = Counter(record.device for record in store.records())
    rows = [arch_named(arch) for arch in arches]
    check(all(not row.is_host for row in rows), f"--arch must be one of {GPUS}, got 'host'")
    infos = [_keyed(key, tuple(recorded), [row.name for row in rows]) for key in keys]
    notes = []
    for row in dict.fromkeys(rows):
        if all(info.arch != row for info in infos):
            info, note = _of_arch(row, recorded)
            infos.append(info)
            notes.append(note)
    return infos, notes


def _keyed(key: str, recorded: Sequence[str], arches: Sequence[str]) -> DeviceInfo:
    if key in KNOWN:
        return KNOWN[key]
    choices = sorted({*recorded, *KNOWN} - {key for key in recorded if key.startswith("host")})
    check(key in recorded, f"--device-key must be one of {', '.join(choices)}, got {key!r}{nearest_of(key, choices)}")
    check(
        len(arches) == 1, f"--device-key {key}: its facts do not ship with tilewright; name its architecture by --arch"
    )
    return replace(typical(arch_named(arches[0])), name=key)


def _of_arch(arch: Arch, recorded: dict[str, int]) -> tuple[DeviceInfo, str]:
    """The device of an architecture with the most records, else the typical one, and a note on the choice."""
    tuned = of_arch(arch, recorded)
    if not tuned:
        info = typical(arch)
        return info, f"nothing was tuned for {arch.name}: a model chooses as for {info.key}"
    others = ", ".join(info.key for info in tuned[1:])
    more = f" (--device-key names another: {others})" if others else ""
    return tuned[0], f"{arch.name}: records of {tuned[0].key}{more}"
