"""Write the records that ship, one a line, without samples and with six digits of each number.

    python benchmarks/ship_records.py export STORE DEVICE-KEY configs/tuned
    python benchmarks/ship_records.py sign configs/tuned

`export` writes a user's records of a device, and the records that ship for other problems, to a file of the folder.
`sign` writes into each record of a folder the digest of the text that its config renders to today. A digest says that
its text was verified on the record's device. So verify today's texts there first, or show that they compile to the
machine code of verified ones.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tilewright.codegen.render import render
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.files import write_whole
from tilewright.runtime.store.codec import line_of, of_line
from tilewright.runtime.store.record import Record
from tilewright.runtime.store.store import SHIPPED, Store

DIGITS = 6
"""Significant digits of the times and errors of records that ship."""


def rounded(record: Record) -> Record:
    """The record with DIGITS digits in each number that is not whole."""
    line = json.loads(line_of(record), parse_float=lambda text: float(f"{float(text):.{DIGITS}g}"))
    return of_line(json.dumps(line).encode())


def ship(records: Iterable[Record], folder: Path) -> list[Path]:
    """Write the records into one file for each device, and return the paths."""
    by_device: dict[str, list[Record]] = {}
    for record in records:
        assert record.measurement is not None, "a record that is stored is timed"
        shipped = replace(record, measurement=replace(record.measurement, samples_us=()), gpu="")
        by_device.setdefault(record.device, []).append(rounded(shipped))
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


def signed(record: Record) -> Record:
    """The record with the digest of today's text."""
    return replace(record, digest=render(record.problem, record.config, KNOWN[record.device]).digest)


def sign(folder: Path) -> list[Path]:
    """Write the files of a folder again, and return the paths of those that changed."""
    written = []
    for path in sorted(folder.glob(f"*{SHIPPED}")):
        before = path.read_bytes()
        ship((signed(of_line(line)) for line in before.splitlines()), folder)
        written += [path] if path.read_bytes() != before else []
    return written


def main() -> None:
    """Export or sign, and print the paths that were written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("export")
    command.add_argument("store", type=Path)
    command.add_argument("device", metavar="DEVICE-KEY")
    command.add_argument("folder", type=Path)
    commands.add_parser("sign").add_argument("folder", type=Path)
    options = parser.parse_args()
    exports = options.command == "export"
    print(*(export(options.store, options.device, options.folder) if exports else sign(options.folder)), sep="\n")


if __name__ == "__main__":
    main()
