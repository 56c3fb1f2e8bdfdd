"""Records for tests of stores, and the paths of a store's files."""

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from tilewright import configs
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store import codec as record_json
from tilewright.runtime.store.codec import key_digest, line_of, of_line
from tilewright.runtime.store.record import Accuracy, Measurement, Record, Status
from tilewright.runtime.store.store import Store

DEVICE = "nvidia-h200"
PROBLEM = Problem(1024, 768, 512)
INFO = DeviceInfo(
    name="NVIDIA H200",
    selector="cuda:0",
    arch=ARCHES["sm_90a"],
    sm_count=132,
    clock_mhz=1980.0,
    memory_bytes=1 << 37,
    l2_bytes=32 << 20,
    bandwidth_gbs=4800.0,
    driver="CUDA 13.0",
)
CONFIGS = [parse(f"tiled:{width},unroll=1") for width in (4, 8, 16, 32)]


def make(median_us: float, problem: Problem = PROBLEM, config: Config = CONFIGS[0], device: str = DEVICE) -> Record:
    measurement = Measurement((median_us,), median_us, 0.0)
    return Record(problem, device, config, Status.OK, "", measurement, Accuracy(0.5, 0, 0))


def unranked(problem: Problem, info: DeviceInfo, records: tuple[Record, ...]) -> None:
    """A ranking without a result."""


def path_of(store: Store, problem: Problem = PROBLEM, device: str = DEVICE) -> Path:
    return store.root / "records" / f"{key_digest(device, problem)}.json"


@cache
def shipped() -> dict[str, Record]:
    """Shipped records by device and problem: `nvidia-h200/64x64x64 float nn`."""
    files = (resources.files(configs) / "tuned").iterdir()
    records = [of_line(line) for file in files for line in file.read_bytes().splitlines()]
    return dict(sorted((f"{record.device}/{record.problem}", record) for record in records))


def ship(store: Store, record: Record, device: str = DEVICE) -> Path:
    """Add a record to the shipped records of a device."""
    path = store.root.parent / "shipped" / f"{device}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(line_of(record))
    return path


def signed(document: dict[str, Any]) -> bytes:
    """The document with its checksum, as JSON."""
    document.pop("checksum", None)
    return json.dumps({**document, "checksum": record_json._sha256(document)}).encode()
