"""`tune --workers`, `tune --scheduler` and `tilewright worker` with bad input, and without their extra."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import Run

SUITE = ("tune", "--shape", "8", "--shape", "9")
KEYS = ("--tls-ca-file", "none.pem", "--tls-cert", __file__, "--tls-key", __file__)
WITHOUT = """
import sys
sys.modules["distributed"] = sys.modules["dask"] = None  # as if they were not installed
from tilewright.cli import app
import tilewright
assert not [name for name in sys.modules if name.startswith(("distributed.", "dask."))]
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "distributed" else real(name, *rest)
app.main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ((*SUITE, "--device", "host", "--workers", "2"), "--workers"),
        ((*SUITE, "--scheduler", "tcp://127.0.0.1:1"), "--scheduler"),
        (("worker", "--scheduler", "tcp://127.0.0.1:1"), "tilewright worker"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_extra_that_is_missing_is_named_in_a_line(command: tuple[str, ...], name: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, *command], capture_output=True, text=True, check=False)
    reason = "needs the extra [cluster], which is not installed: pip install 'tilewright[cluster]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"tilewright: {name} {reason}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workers", "0"), "'0' is not auto or a number from 1 to 1024"),
        (("--workers", "many"), "'many' is not auto or a number from 1 to 1024"),
        (("--tls-ca-file", __file__), "--tls-ca-file is for --workers or --scheduler"),
        (("--device-key", "nvidia-h200"), "--device-key is for --workers or --scheduler"),
        (("--device", "cuda:1", "--workers", "2"), "--workers excludes --device cuda:1"),
        (("--device", "host", "--workers", "auto"), "--workers N is N on the processor"),
        (("--device", "host", "--workers", "2", "--device-key", "nvidia-h200"), "--device-key must be host"),
        (("--scheduler", "tcp://127.0.0.1:1", "--workers", "2"), "--scheduler excludes --workers and --device"),
        (("--scheduler", "127.0.0.1:1"), "--scheduler must be tcp://HOST:PORT, tls://HOST:PORT or a file"),
        (("--scheduler", "none.json"), "cannot read the file of --scheduler none.json: No such file or directory"),
        *((("--scheduler", each), f"--scheduler must be tcp://HOST:PORT, tls://HOST:PORT or a file ending in .json, got"
           f" {each!r}") for each in ("tcp://", "tcp://x", "tcp://x:y", "tcp://:80", "tcp://x:0", "inproc://x")),
        (("--scheduler", "tls://127.0.0.1:1"), "tls://127.0.0.1:1 needs --tls-ca-file, --tls-cert and --tls-key"),
        (("--scheduler", "tls://127.0.0.1:1", "--tls-cert", __file__), "together; add --tls-ca-file and --tls-key"),
        (("--scheduler", "tls://127.0.0.1:1", *KEYS), "--tls-ca-file none.pem: there is no such file"),
        (("--device", "host", "--workers", "2", "--sampler", "best"), "sampler must be one of"),
    ],
)  # fmt: skip
def test_bad_input(run: Run, arguments: tuple[str, ...], words: str) -> None:
    pytest.importorskip("distributed")
    done = run(*SUITE, *arguments)
    assert (done.status, done.out) == (2, "")
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.timeout(30)  # a pipe that is opened to be read waits for its writer
@pytest.mark.parametrize("command", [SUITE, ("worker", "--workers", "1", "--device", "host")], ids=["tune", "worker"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "it is no scheduler file of Dask's"),
        ('{"address": "inproc://x"}', "its address must be tcp://HOST:PORT or tls://HOST:PORT, got 'inproc://x'"),
        ('{"address": "tcp://x:y"}', "its address must be tcp://HOST:PORT or tls://HOST:PORT, got 'tcp://x:y'"),
        ('{"address": 5}', "its address must be tcp://HOST:PORT or tls://HOST:PORT, got 5"),
        ("{}", "it is no scheduler file of Dask's"),
        (None, "not a regular file"),
    ],
    ids=["deep", "inproc", "no port", "no text", "no address", "pipe"],
)
def test_a_bad_scheduler_file_is_reported_at_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], text: str | None, words: str
) -> None:
    link = pytest.importorskip("tilewright.tuner.cluster.link")
    monkeypatch.setattr(link, "ANSWER_S", 3600.0)
    file = tmp_path / "scheduler.json"
    if text is None:
        os.mkfifo(file)
    else:
        file.write_text(text)
    done = run(*command, "--scheduler", str(file))
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert words in done.err


def test_a_worker_waits_for_a_scheduler_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask does not write the file in one step."""
    link = pytest.importorskip("tilewright.tuner.cluster.link")
    monkeypatch.setattr(link, "ANSWER_S", 0.2)
    for text in (None, '{"addr'):
        if text is not None:
            (tmp_path / "scheduler.json").write_text(text)
        begin = time.monotonic()
        done = run("worker", "--workers", "1", "--device", "host", "--scheduler", str(tmp_path / "scheduler.json"))
        assert (done.status, done.err.count("\n")) == (2, 1)
        assert time.monotonic() - begin > 0.2


def test_files_that_are_no_certificates_are_refused(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    (tmp_path / "x.pem").write_text("nothing")
    files = [word for name in ("ca-file", "cert", "key") for word in (f"--tls-{name}", str(tmp_path / "x.pem"))]
    done = run(*SUITE, "--scheduler", "tls://127.0.0.1:1", *files)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "--tls-ca-file, --tls-cert and --tls-key cannot be used" in done.err


def test_a_recording_is_of_one_shape_on_one_device(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    done = run("tune", "--shape", "8", "--device", "host", "--workers", "1", "--record", str(tmp_path / "r.json"))
    assert done.status == 2
    assert "--record excludes --workers" in done.err
