"""Writes into the records that ship the digests of the texts that their configs render to today.

A digest says that its text was verified on the record's device. So today's texts must have been verified there, or
compile to the machine code of those that were.

python benchmarks/sign_records.py configs/tuned
"""

import sys
from dataclasses import replace
from pathlib import Path

from tilewright.codegen.render import render
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.files import write_whole
from tilewright.runtime.store.codec import dumps, loads


def sign(folder: Path) -> list[Path]:
    """Write the records below a folder again that carry another digest, and return their paths."""
    written = []
    for path in sorted(folder.glob("*/*.json")):
        record = loads(path.read_bytes())
        digest = render(record.problem, record.config, KNOWN[record.device].arch).digest
        if digest != record.digest:
            write_whole(path, dumps(replace(record, digest=digest)))
            written.append(path)
    return written


if __name__ == "__main__":
    print(*sign(Path(sys.argv[1])), sep="\n")
