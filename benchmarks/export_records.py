"""Writes a user's records of a device as files of configs/tuned/, in which records ship.

python benchmarks/export_records.py STORE DEVICE-KEY configs/tuned
"""

import sys
from pathlib import Path

from tilewright.runtime.files import write_whole
from tilewright.runtime.store.codec import dumps
from tilewright.runtime.store.store import Store, shipped_name


def export(store: Path, device_key: str, folder: Path) -> list[Path]:
    """`folder/<device key>/` and the name that `shipped_name` gives, for each record of the store itself."""
    own, _ = Store(store.absolute()).layers()
    written = []
    for record in (record for record in own if record.device == device_key):
        path = folder / record.device / shipped_name(record.problem)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, dumps(record))
        written.append(path)
    return written


if __name__ == "__main__":
    print(*export(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])), sep="\n")
