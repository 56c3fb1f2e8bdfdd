"""Write a user's records of a device to a file of configs/tuned/, from which records ship: one a line, without samples.

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
    """Write the records into one file for each device, and return the paths."""
    by_device: dict[str, list[Record]] = {}
    for record in records:
        assert record.measurement is not None, "a record that is stored is timed"
        shipped = replace(record, measurement=replace(record.measurement, samples_us=()), gpu="")
        by_device.setdefault(record.device, []).append(shipped)
    written = []
    for device, device_records in by_device.items():
        folder.mkdir(parents=True, exist_ok=True)
        device_records.sort(key=lambda each: (each.problem.kind, each.problem.m, each.problem.n, each.problem.k))
        write_whole(path := folder / f"{device}{SHIPPED}", b"".join(map(line_of, device_records)))
        written.append(path)
    return written


def export(store: Path, device_key: str, folder: Path) -> list[Path]:
    """Write the records of a device: those of the store itself, and those that ship for other problems."""
    own, shipped = Store(store.absolute()).both()
    records = {record.problem: record for record in (*shipped, *own) if record.device == device_key}
    return ship(records.values(), folder)


if __name__ == "__main__":
    print(*export(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])), sep="\n")
