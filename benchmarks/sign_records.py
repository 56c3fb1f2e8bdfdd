"""Write into each record that ships the digest of the text that its config renders to today.

A digest says that its text was verified on the record's device. So verify today's texts there first, or show that they
compile to the machine code of verified ones.

python benchmarks/sign_records.py configs/tuned
"""

import sys
from dataclasses import replace
from pathlib import Path

from export_records import ship
from tilewright.codegen.render import render
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.store.codec import of_line
from tilewright.runtime.store.record import Record
from tilewright.runtime.store.store import SHIPPED


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


if __name__ == "__main__":
    print(*sign(Path(sys.argv[1])), sep="\n")
