"""Records to store, and where a store puts them."""

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
from tilewright.runtime.store.codec import dumps, key_digest, loads
from tilewright.runtime.store.record import Accuracy, Measurement, Record, Status
from tilewright.runtime.store.store import Store

DEVICE = "nvidia-h200"
PROBLEM = Problem(1024, 768, 512)
INFO = DeviceInfo("NVIDIA H200", "cuda:0", ARCHES["sm_90a"], 132, 1980.0, 1 << 37, 1 << 25, 4800.0, "CUDA 13.0")
CONFIGS = [parse(f"tiled:{width},unroll=1") for width in (4, 8, 16, 32)]


def make(median_us: float, problem: Problem = PROBLEM, config: Config = CONFIGS[0], device: str = DEVICE) -> Record:
    measurement = Measurement((median_us,), median_us, 0.0)
    return Record(problem, device, config, Status.OK, "", measurement, Accuracy(0.5, 0, 0))


def unranked(problem: Problem, info: DeviceInfo, records: tuple[Record, ...]) -> None:
    """A ranking that finds nothing."""


def path_of(store: Store, problem: Problem = PROBLEM, device: str = DEVICE) -> Path:
    return store.root / "records" / f"{key_digest(device, problem)}.json"


@cache
def shipped() -> dict[str, Record]:
    """The records that ship, by device and filename: `nvidia-h200/64x64x64-float-nn.json`."""
    files = [file for folder in (resources.files(configs) / "tuned").iterdir() for file in folder.iterdir()]
    records = [loads(file.read_bytes()) for file in files]
    return dict(sorted((f"{record.device}/{file.name}", record) for file, record in zip(files, records)))


def ship(store: Store, record: Record, folder: str = DEVICE, name: str = "some.json") -> Path:
    path = store.root.parent / "shipped" / folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(dumps(record))
    return path


def signed(document: dict[str, Any]) -> bytes:
    document.pop("checksum", None)
    return json.dumps({**document, "checksum": record_json._sha256(document)}).encode()
