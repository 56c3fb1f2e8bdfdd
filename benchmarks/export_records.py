"""Writes a user's records of a device as a file of configs/tuned/, in which records ship: a line each, without samples.

python benchmarks/export_records.py STORE DEVICE-KEY configs/tuned
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tilewright.runtime.files import write_whole
from tilewright.runtime.store.codec import line_of
from tilewright.runtime.store.record import Record
from tilewright.runtime.store.store import SHIPPED, Store


def ship(records: Iterable[Record], folder: Path) -> list[Path]:
    """Write the records as files of devices, and return their paths."""
    by_device: dict[str, list[Record]] = {}
    for record in records:
        assert record.measurement is not None, "a record that is stored is timed"
        short = replace(record, measurement=replace(record.measurement, samples_us=()), gpu="")
        by_device.setdefault(record.device, []).append(short)
    written = []
    for device, of_device in by_device.items():
        folder.mkdir(parents=True, exist_ok=True)
        of_device.sort(key=lambda each: (each.problem.kind, each.problem.m, each.problem.n, each.problem.k))
        write_whole(path := folder / f"{device}{SHIPPED}", b"".join(map(line_of, of_device)))
        written.append(path)
    return written


def export(store: Path, device_key: str, folder: Path) -> list[Path]:
    """Write the records of the store itself for a device beside those that ship for other problems."""
    own, shipped = Store(store.absolute()).both()
    found = {record.problem: record for record in (*shipped, *own) if record.device == device_key}
    return ship(found.values(), folder)


if __name__ == "__main__":
    print(*export(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])), sep="\n")
