"""Workers get problems only if they have this version, and a device of the chosen model."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from tilewright.codegen.arch import ARCHES
from tilewright.codegen.errors import ConfigError
from tilewright.runtime.device.host_info import host_info
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.tuner.cluster import client, link, worker
from tilewright.tuner.cluster.worker import seat_of, seat_read

pytestmark = pytest.mark.fast


class Scheduled:
    """A client whose scheduler has workers with these seats."""

    def __init__(self, *seats: str) -> None:
        self.seats = seats

    def scheduler_info(self, n_workers: int) -> dict[str, dict[str, object]]:
        return {
            "workers": {f"tcp://{n}": {"resources": {seat: 1.0, "other": 2.0}} for n, seat in enumerate(self.seats)}
        }

    def run(self, function: object, workers: list[str]) -> dict[str, str]:
        worker._here[:] = [host_info()]
        return {workers[0]: worker.facts()}


class NoMoreError(Exception):
    """Raised in place of a wait for a worker."""


def chosen(scheduled: Scheduled, key: str = "") -> tuple[DeviceInfo | None, list[str]]:
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        if text.startswith("waiting"):
            raise NoMoreError

    try:
        return client.model(scheduled, key, note), notes  # type: ignore[arg-type]
    except NoMoreError:
        return None, notes


def test_the_only_model_is_chosen() -> None:
    assert chosen(Scheduled(seat_of("nvidia-h200"), seat_of("nvidia-h200"))) == (host_info(), [])


def test_one_of_several_models_has_to_be_named() -> None:
    mixed = Scheduled(seat_of("nvidia-h200"), seat_of("nvidia-a100"))
    with pytest.raises(ConfigError, match="have nvidia-a100, nvidia-h200; name one of them by --device-key"):
        chosen(mixed)
    assert chosen(mixed, "nvidia-a100") == (host_info(), [])
    result, notes = chosen(mixed, "nvidia-b200")
    assert result is None
    assert notes == ["waiting for a worker with a nvidia-b200; there are nvidia-a100, nvidia-h200"]


def test_workers_of_another_version_are_reported_and_get_nothing() -> None:
    result, notes = chosen(Scheduled("tilewright 9.9+abc nvidia-h200"))
    assert result is None
    assert len(notes) == 2
    assert "workers of tilewright 9.9+abc get nothing: this is " in notes[0]
    assert seat_read("tilewright 9.9+abc nvidia-h200") == ("9.9+abc", "nvidia-h200")
    assert seat_read("GPU") is None


def test_a_share_of_the_processors_is_whole_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(link.os, "sched_getaffinity", lambda process: {0, 1, 2, 3, 4, 5, 9})
    monkeypatch.setattr(link, "TOPOLOGY", tmp_path)
    assert link.processors() == [0, 1, 2, 3, 4, 5, 9]
    for cpu, siblings in enumerate(("0,3", "1,4", "2,5", "0,3", "1,4", "2,5")):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    assert link.processors() == [0, 3, 1, 4, 2, 5, 9]  # Linux says nothing of the last one
    shares = [each["preload_argv"][0][3] for each in link.workers([host_info()] * 3)]  # type: ignore[index]
    assert shares == ["0,3", "1,4", "2,5"]


def test_each_gpu_has_a_worker_by_its_uuid_and_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(link, "TOPOLOGY", tmp_path)  # an empty folder says nothing
    monkeypatch.setattr(link.os, "sched_getaffinity", lambda process: set(range(2, 18)))
    gpu = replace(host_info(), arch=ARCHES["sm_90a"], selector="cuda:5")
    workers = link.workers([replace(gpu, uuid=f"GPU-{number}") for number in range(3)])
    assert [each["env"] for each in workers] == [{"CUDA_VISIBLE_DEVICES": f"GPU-{number}"} for number in range(3)]
    first = {"preload_argv": [["--device", "cuda:0", "--cores", "2,3,4,5,6,7,8"]]}
    assert first.items() <= workers[0].items()
    shares = [each["preload_argv"][0][-1] for each in workers]  # type: ignore[index]
    assert shares[1:] == ["7,8,9,10,11,12,13", "12,13,14,15,16,17,2"]
    monkeypatch.setattr(link.os, "sched_getaffinity", lambda process: {0, 1})
    four = link.workers([host_info()] * 4)
    assert [each["preload_argv"][0][-1] for each in four] == ["0", "1", "0", "1"]  # type: ignore[index]
