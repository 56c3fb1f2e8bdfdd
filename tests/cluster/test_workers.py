"""Several workers on the processor: a process that is killed or lost, and a message that is forged, cost little."""

import datetime
import ipaddress
import os
import random
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("distributed")
pytest.importorskip("cryptography")

from clusters import ROUTES, TRIALS, place, until
from tilewright.tuner.cluster import worker
from tilewright.tuner.measure.child import child_for, leave

WORKERS = ("--device", "host", "--workers")


def ended(process: "subprocess.Popen[str]", seconds: float = 120) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, re.sub("note: waiting for a worker; there is none yet\n", "", err)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.slow
def test_four_workers_on_the_loopback_address(tmp_path: Path) -> None:
    with place(tmp_path, shapes=5) as cluster:
        process = cluster.start(*cluster.tune, *WORKERS, "4", "--csv", str(tmp_path / "trials.csv"))
        until(cluster.noted)
        assert {address for address, _ in cluster.listening()} == {"127.0.0.1"}
        assert cluster.pages() == set()
        assert len(cluster.workers()) == 4
        status, out, err = ended(process)
        assert (status, err) == (0, "")
        assert "5 shapes on host" in out
        assert "4 workers\n" in out
        assert "5 of 5 shapes" in out
        assert re.search(r"^1/5 [3-6]x", out, re.M), out  # the longest shape comes first
        assert cluster.repeats() == 0
        assert cluster.complete()
        assert len((tmp_path / "trials.csv").read_text().splitlines()) == 1 + 5 * TRIALS
        until(lambda: not list(cluster.processes()), 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_worker_is_killed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with place(tmp_path, shapes=8) as cluster:
        process = cluster.start(*cluster.tune, *WORKERS, "4")
        until(lambda: len(cluster.noted()) > chance.randint(1, 20))
        time.sleep(chance.random() / 5)
        chance.choice(cluster.workers()).kill()
        status, _, err = ended(process)
        assert (status, err) == (0, "")
        assert cluster.repeats() <= 2  # the trial under way, and the one before it where that had just ended
        assert cluster.complete()
        until(lambda: not list(cluster.processes()), 10)


@pytest.mark.slow
@pytest.mark.parametrize("has_own_workers", [True, False], ids=["workers", "scheduler"])
def test_the_client_is_killed_and_started_again(tmp_path: Path, has_own_workers: bool) -> None:
    with place(tmp_path, shapes=8, pause_s=1.5) as cluster:  # long trials, since workers on a busy machine stop late
        options = (*WORKERS, "4") if has_own_workers else cluster.scheduler_option
        if not has_own_workers:
            cluster.scheduler()
            cluster.start("worker", *cluster.scheduler_option, *WORKERS, "4")
        first = cluster.start(*cluster.tune, *options)
        until(lambda: cluster.journaled() > 4)
        first.kill()
        first.communicate()
        if has_own_workers:
            until(lambda: not list(cluster.processes()), 10)
        else:
            cluster.wait_until_idle()
        journaled, measured = cluster.journaled(), len(cluster.noted())
        assert measured < 8 * TRIALS  # the workers stopped, though a busy machine lets them do so late
        second = cluster.start(*cluster.tune, *options)
        status, out, err = ended(second)
        assert (status, err) == (0, "")
        assert "goes on from" in out
        assert len(cluster.noted()) - measured == 8 * TRIALS - journaled  # no trial of a journal is measured again
        assert cluster.complete()


@pytest.mark.slow
def test_the_scheduler_is_killed_and_started_again(tmp_path: Path) -> None:
    with place(tmp_path, shapes=8, pause_s=1.5) as cluster:
        port = free_port()
        scheduler = cluster.scheduler(port=port)
        workers = cluster.start("worker", *cluster.scheduler_option, *WORKERS, "3")
        process = cluster.start(*cluster.tune, *cluster.scheduler_option)
        until(lambda: cluster.journaled() > 4)
        scheduler.kill()
        scheduler.communicate()
        cluster.wait_until_idle()
        journaled, measured = cluster.journaled(), len(cluster.noted())
        assert measured < 8 * TRIALS  # the workers stopped, though a busy machine lets them do so late
        cluster.scheduler(port=port)
        status, out, err = ended(process)
        assert (status, err) == (
            0,
            "note: the scheduler is gone: waiting 60 s for it; what was measured is kept\n"
            "note: the scheduler is back: going on\n",
        )
        assert len(cluster.noted()) - measured == 8 * TRIALS - journaled  # no trial of a journal is measured again
        assert cluster.complete()
        workers.send_signal(signal.SIGTERM)
        status, out, err = ended(workers, 20)
        assert (status, err) == (0, "")
        assert out.count("is gone: waiting 60 s for it") == 1
        until(lambda: not cluster.workers(), 10)


@pytest.mark.slow
def test_a_scheduler_that_stays_away(tmp_path: Path) -> None:
    with place(tmp_path, shapes=4, pause_s=0.4) as cluster:
        scheduler, soon = cluster.scheduler(), {"MEASURED_RETURN_S": "8"}
        workers = cluster.start("worker", *cluster.scheduler_option, *WORKERS, "2", **soon)
        process = cluster.start(*cluster.tune, *cluster.scheduler_option, **soon)
        until(lambda: len(list((cluster.store / "records").glob("*.json"))) > 0)
        scheduler.kill()
        status, out, err = ended(process)
        assert (status, err.count("\n")) == (1, 2)
        assert err.endswith("tilewright: the scheduler did not come back in 8 s; what was measured is kept\n")
        assert re.search("[1-3] of 4 shapes", out)
        status, _, err = ended(workers)
        assert (status, err.count("\n")) == (2, 1)
        assert "no scheduler answers there" in err
        until(lambda: not list(cluster.processes()), 10)


@pytest.mark.slow
def test_ctrl_c_ends_the_searches_with_their_duels(tmp_path: Path) -> None:
    with place(tmp_path, shapes=8) as cluster:
        process = cluster.start(
            *cluster.tune, *WORKERS, "2", DASK_DISTRIBUTED__WORKER__HTTP__ROUTES='["distributed.http.health"]'
        )
        until(lambda: len(cluster.noted()) > 2)
        assert {path for status, path in cluster.pages() if status == 200} == {"/health", "/sitemap.json"}
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        status, out, err = ended(process, 30)
        assert (status, err) == (130, "")
        assert re.search(r"[1-4] of 8 shapes", out)
        until(lambda: not list(cluster.processes()), 10)


def certificates(folder: Path, name: str) -> tuple[str, ...]:
    """Options that name a new authority, a certificate by it that serves both sides, and the certificate's key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now, keys, signed = datetime.datetime.now(datetime.UTC), [], []
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{name} {role}")]) for role in ("ca", "side")]
    for number, role in enumerate(("ca", "side")):
        key = ec.generate_private_key(ec.SECP256R1())
        keys.append(key)
        signed.append(
            x509.CertificateBuilder()
            .subject_name(names[number])
            .issuer_name(names[0])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=role == "ca", path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
            .sign(keys[0], hashes.SHA256())
        )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    files = {
        "ca": signed[0].public_bytes(encoding),
        "cert": signed[1].public_bytes(encoding),
        "key": keys[1].private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain),
    }
    for kind, data in files.items():
        (folder / f"{name}-{kind}.pem").write_bytes(data)
    ca, cert, key_file = (str(folder / f"{name}-{kind}.pem") for kind in files)
    return "--tls-ca-file", ca, "--tls-cert", cert, "--tls-key", key_file


@pytest.mark.slow
def test_tls_with_the_right_and_with_a_wrong_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES", "[]")
    right, wrong = certificates(tmp_path, "right"), certificates(tmp_path, "wrong")
    with place(tmp_path, shapes=2) as cluster:
        cluster.scheduler("--protocol", "tls", *right)
        cluster.start("worker", *cluster.scheduler_option, *WORKERS, "2", *right)
        status, out, err = ended(cluster.start(*cluster.tune, *cluster.scheduler_option, *right))
        assert (status, err) == (0, "")
        assert cluster.complete()
        # Dask's own scheduler says that it has no page but its list of none; the workers listen for none.
        missing = {(404, path) for path in ROUTES if path != "/sitemap.json"}
        assert cluster.pages() == missing | {(200, "/sitemap.json")}
        refused = [
            cluster.start(*cluster.tune, *cluster.scheduler_option, *wrong),
            cluster.start("worker", *cluster.scheduler_option, *WORKERS, "1", *wrong),
        ]
        for process in refused:
            status, out, err = ended(process, 30)
            assert (status, out.count("winner"), err.count("\n")) == (2, 0, 1)
            assert "TLS failed, its certificate or ours is refused" in err
        status, out, err = ended(cluster.start(*cluster.tune, *cluster.scheduler_option))
        assert (status, err.count("\n")) == (2, 1)
        assert "needs --tls-ca-file, --tls-cert and --tls-key" in err


BROKEN = """
from tilewright.tuner.cluster import worker

def broken(*arguments, **options):
    raise ZeroDivisionError("a slip")

worker.tune = broken
from tilewright.tuner.cluster.worker import dask_setup
"""


@pytest.mark.slow
def test_an_unexpected_error_costs_its_problem_alone(tmp_path: Path) -> None:
    with place(tmp_path, shapes=2) as cluster:
        (tmp_path / "broken.py").write_text(BROKEN)
        cluster.scheduler()
        cluster.dask_worker("--preload", str(tmp_path / "broken.py"), "--device", "host")
        status, _, err = ended(cluster.start(*cluster.tune, *cluster.scheduler_option), 40)
        assert (status, err.count("\n")) == (1, 2), err
        assert "tilewright: 3x4x5 float nn: unexpected ZeroDivisionError: a slip" in err


HOSTILE = """
import json
from tilewright.tuner.cluster import worker

real = getattr(worker, "real", worker.Attempt.say)  # Dask reads this file more than once
worker.real = real
OK = {"status": "ok", "time_us": 1.0}

def say(self, message):
    if isinstance(message, worker.Ends):
        text = worker.written(message)
        forged, other = json.loads(text), json.loads(text)
        forged["result"]["best"]["measurement"]["median_us"] = -1
        other["result"]["problem"]["m"] = 4096
        trial = {"kind": "Tells", "attempt": self.name, "entry": OK,
                 "started": "2026-01-01T00:00:00", "variant": "naive:8x33"}
        unfit, another = {"variant": "dmma"}, {"attempt": "../../etc", "started": "now", "variant": "\\u001b[2J"}
        for each in (
            "{", "[" * 10000, 7, {"kind": "Ends"}, json.dumps({"kind": "__import__"}),
            json.dumps(forged), json.dumps(other), text.replace('"seconds": ', '"seconds": NaN, "x": '),
            json.dumps(trial), json.dumps(trial | unfit), json.dumps(trial | another),
            json.dumps({"kind": "Fails", "attempt": "another", "reason": "\\u001b[2J"}),
        ):
            self._worker.log_event(self.task.topic, each)
    real(self, message)

worker.Attempt.say = say
from tilewright.tuner.cluster.worker import dask_setup
"""


@pytest.mark.slow
def test_what_a_hostile_worker_sends_is_refused(tmp_path: Path) -> None:
    with place(tmp_path, shapes=2) as cluster:
        (tmp_path / "hostile.py").write_text(HOSTILE)
        cluster.scheduler()
        cluster.dask_worker("--preload", str(tmp_path / "hostile.py"), "--device", "host")
        status, out, err = ended(cluster.start(*cluster.tune, *cluster.scheduler_option))
        assert status == 0, err
        assert cluster.complete()
        notes = err.splitlines()
        assert 5 <= len(notes) <= 10
        assert all(note.startswith("note: a message of a worker is refused: ") for note in notes)
        assert "\x1b" not in err + out


LOST = """
import os
from tilewright.tuner.cluster import worker
from tilewright.codegen.errors import TuningError

if worker.threading.current_thread().name == "MainThread" and "spawn_main" in open("/proc/self/cmdline").read():
    try:
        open({flag!r}, "x").close()
        worker.is_lost = True
    except FileExistsError:
        pass
if getattr(worker, "is_lost", False):
    def lost(*arguments, **options):
        raise TuningError("the device cannot be opened: an illegal address was met")
    worker.tune = lost
    worker.fault = lambda info: "an illegal address was met"
from tilewright.tuner.cluster.worker import dask_setup
"""


@pytest.mark.slow
def test_a_worker_whose_device_is_lost_gets_no_more_and_its_problem_goes_to_another(tmp_path: Path) -> None:
    with place(tmp_path, shapes=4) as cluster:
        (tmp_path / "lost.py").write_text(LOST.format(flag=str(tmp_path / "flag")))
        cluster.scheduler()
        for _ in range(2):
            cluster.dask_worker("--preload", str(tmp_path / "lost.py"), "--device", "host")
        until((tmp_path / "flag").exists)
        status, _, err = ended(cluster.start(*cluster.tune, *cluster.scheduler_option))
        assert (status, err.count("\n")) == (0, 1), err
        assert "is lost, and gets no more: an illegal address was met" in err
        assert len(list((cluster.store / "records").iterdir())) == 4


GONE = """
import os
import time
from tilewright.tuner.cluster import worker

real = getattr(worker, "real", worker.Attempt.say)  # Dask reads this file more than once
worker.real = real

def say(self, message):
    real(self, message)
    if isinstance(message, worker.Ends):
        try:
            open({flag!r}, "x").close()
        except FileExistsError:
            return
        time.sleep(1)  # until the message was sent
        os._exit(1)

worker.Attempt.say = say
from tilewright.tuner.cluster.worker import dask_setup
"""


@pytest.mark.slow
def test_a_worker_that_dies_after_its_result_was_heard_keeps_no_other_from_work(tmp_path: Path) -> None:
    """Dask gives its problem to the next worker, who need not solve it again."""
    with place(tmp_path, shapes=3) as cluster:
        (tmp_path / "gone.py").write_text(GONE.format(flag=str(tmp_path / "flag")))
        cluster.scheduler()
        cluster.dask_worker("--preload", str(tmp_path / "gone.py"), "--device", "host")
        status, out, err = ended(cluster.start(*cluster.tune, *cluster.scheduler_option))
        assert (tmp_path / "flag").exists()
        assert (status, err) == (0, "")
        assert "3 of 3 shapes" in out
        assert cluster.complete()


@pytest.mark.slow
def test_commands_end_where_no_scheduler_answers(tmp_path: Path) -> None:
    with place(tmp_path, shapes=2) as cluster:
        commands = (cluster.tune, ("worker", *WORKERS, "1"))
        nowhere = "--scheduler", f"tcp://127.0.0.1:{free_port()}"
        for process in [cluster.start(*command, *nowhere) for command in commands]:
            status, out, err = ended(process)
            assert (status, out, err.count("\n")) == (2, "", 1)
            assert "no scheduler answers there" in err


@pytest.mark.slow
def test_a_problem_whose_workers_all_die_has_failed(tmp_path: Path) -> None:
    with place(tmp_path, shapes=1, pause_s=1) as cluster:  # no problem ends before its worker is killed
        process = cluster.start(*cluster.tune, *WORKERS, "1")
        for _ in range(4):
            until(cluster.measuring)
            assert cluster.pages() == set()  # a restarted worker has no page either
            cluster.workers()[0].kill()
            until(lambda: not cluster.measuring())
        status, _, err = ended(process)
        assert (status, err) == (1, "tilewright: 2x3x4 float nn: each worker that had it died\n")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.4, 0.9])
def test_ctrl_c_while_workers_start(tmp_path: Path, seconds: float) -> None:
    with place(tmp_path, shapes=2) as cluster:
        process = cluster.start(*cluster.tune, *WORKERS, "2")
        until(lambda: len(list(cluster.processes())) > 1)  # a first process of the workers
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        status, _, err = ended(process, 30)
        assert status == 130
        assert err in ("", "tilewright: interrupted\n")
        until(lambda: not list(cluster.processes()), 10)


def test_processes_serve_the_next_problem_and_end_when_none_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_IDLE_S", 0.2)
    with worker._serving():
        first = child_for("compiling")
        leave(first, "compiling")
    with worker._serving():
        assert child_for("compiling") is first
        time.sleep(0.4)  # longer than idle processes wait, but this one is at work
        assert first.idle
        leave(first, "compiling")
    until(lambda: not first.idle, 10)
