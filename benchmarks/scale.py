"""Measure how many workers one client serves, by simulation, and how much faster several GPUs are than one.

    python benchmarks/scale.py RECORDING... --workers 1 4 16 64 256
    python benchmarks/scale.py --gpus 4
    python benchmarks/scale.py --gpus 4 --kills 3

The first command needs no GPU. It starts a Dask scheduler and processes full of simulated workers, which tune as usual,
but each trial is a sleep: as long as the recorded trial took, or so short that a worker has `--pace` trials a second.
The second command tunes 24 problems on one GPU and at the same time on half of the GPUs, then on all. The cores are
divided evenly among the GPUs. The third command tunes the problems on all GPUs again, once for each kill. A worker is
killed at a random moment of each run, and the winners are compared with those of the second command. Each command
writes its part of benchmarks/results/cluster.json.
"""

import argparse
import asyncio
import datetime
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from distributed import Client, Worker
from distributed import __version__ as dask_version
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import Problem
from tilewright.runtime.device import detect
from tilewright.runtime.device.host_info import host_info
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store.record import Accuracy, Measurement, Record, Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.cluster import worker as tuning_worker
from tilewright.tuner.cluster.client import Tuning, resources
from tilewright.tuner.cluster.link import processors, quiet
from tilewright.tuner.cluster.messages import ClusterProgress, Tells
from tilewright.tuner.measure.decide import NAIVE, Contender
from tilewright.tuner.measure.evaluate import Phases
from tilewright.tuner.recording.files import Recording, read_cache_file
from tilewright.tuner.recording.points import config_of
from tilewright.tuner.result import Result
from tilewright.tuner.settings import Budget

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "cluster.json"
WORKERS_A_PROCESS = 64
ROUNDS = 4
"""Problems for each worker."""
SECONDS = 15.0
"""Seconds that a simulated worker tunes a problem, as with `--seconds`."""
MEASUREMENT = Measurement((10.0, 10.1, 9.9) * 4, 10.0, 0.1)
SHAPES = [f"{m}x{n}x{k}" for m in (256, 512, 1024, 2048) for n in (192, 768, 2048) for k in (256, 1024)]
"""Shapes that GPUs tune, in float."""


def simulated_info() -> DeviceInfo:
    """The device that simulated workers report."""
    return DeviceInfo(
        name="host simulated",
        selector="host",
        arch=host_info().arch,
        sm_count=1,
        clock_mhz=1000.0,
        memory_bytes=1 << 36,
        l2_bytes=1 << 20,
        bandwidth_gbs=10.0,
        driver="none",
    )


def result_of(problem: Problem, trials: int, seconds: float) -> Result:
    """The result of a simulated tuning, as large as a real one."""
    accuracy, info = Accuracy(0.1, 0, 0), simulated_info()
    best = Record(problem, info.key, NAIVE, Status.OK, measurement=MEASUREMENT, accuracy=accuracy)
    contenders = tuple(Contender(config, MEASUREMENT, accuracy, 1.0, (1.0, 1.0)) for config in (*[NAIVE] * 6, None))
    return Result(
        problem, info, best, contenders, trials, 0, (("ok", trials),), (), Phases(), 0.0, seconds, None, None, 0, 1.0,
        "seconds",
    )  # fmt: skip


def simulated_tune(recording: Recording, pace: float) -> Any:
    """A function that replaces `tune` in a simulated worker. Trials are variants that serve the problem, and take the
    recorded time, or 1 / `pace` seconds."""
    tried = (point for point, entry in recording.entries.items() if entry.status != "pruned")
    variants = {point: config_of(recording.values(point)) for point in tried}

    def tune(problem: Problem, *, progress: Any, seconds: float, **options: Any) -> Result:
        rng, start, spent_s, trials = random.Random(str(problem)), time.monotonic(), 0.0, 0
        info = simulated_info()
        points = [point for point, config in variants.items() if serves(config, problem, info)]
        progress.started(problem, info, len(points), Budget(100_000, seconds), 0)
        while True:
            point = rng.choice(points)
            entry = recording.entries[point]
            spent_s += 1 / pace if pace else entry.charged_s
            if spent_s > seconds:  # like `tune`, which drops the trial that runs when the time is up
                time.sleep(max(0.0, start + seconds - time.monotonic()))
                break
            trials += 1
            time.sleep(max(0.0, start + spent_s - time.monotonic()))
            started = datetime.datetime.now().isoformat(timespec="seconds")
            progress.say(Tells(progress.name, str(variants[point]), entry, started))
            progress.check()
        return result_of(problem, trials, time.monotonic() - start)

    return tune


def run_workers(address: str, count: int, recording: str, pace: float) -> None:
    """Run `count` simulated workers in this process, until they are closed."""
    quiet()
    info = simulated_info()
    tuning_worker._here[:] = [info]
    tuning_worker.tune = simulated_tune(read_cache_file(Path(recording)), pace)

    async def serve() -> None:
        seats = {tuning_worker.seat_of(info.key): 1}
        options: dict[str, Any] = {"nthreads": 1, "memory_limit": 0, "host": "127.0.0.1", "resources": seats}
        options |= {"dashboard_address": "127.0.0.1:0", "heartbeat_interval": "5s"}
        workers = [Worker(address, **options) for _ in range(count)]
        await asyncio.gather(*workers)
        await asyncio.gather(*(worker.finished() for worker in workers))

    asyncio.run(serve())


class MessageCounter(ClusterProgress):
    """Counts trials and failed problems, and prints failures and notices."""

    def __init__(self) -> None:
        self.trials = self.failed_count = 0

    def tried(self, problem: Problem, device_key: str, trial: Tells) -> None:
        self.trials += 1

    def failed(self, problem: Problem, reason: str) -> None:
        self.failed_count += 1
        print(f"{problem}: {reason}", file=sys.stderr)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)


def simulate(recordings: list[str], count: int, pace: float) -> dict[str, Any]:
    """Simulate `count` workers, and return a row of the results."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scheduler_file = folder / "scheduler.json"
        scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
        scheduler += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(scheduler_file)]
        processes = [subprocess.Popen(scheduler, stderr=subprocess.DEVNULL, cwd=folder)]
        stack.callback(lambda: [(process.kill(), process.wait()) for process in processes])
        while not scheduler_file.exists():
            time.sleep(0.05)
        address = json.loads(scheduler_file.read_text())["address"]
        sizes = [min(WORKERS_A_PROCESS, count - begin) for begin in range(0, count, WORKERS_A_PROCESS)]
        for number, size in enumerate(sizes):
            arguments = ["--host", address, str(size), recordings[number % len(recordings)], str(pace)]
            processes.append(subprocess.Popen([sys.executable, __file__, *arguments], cwd=folder))
        client = Client(address, set_as_default=False)
        stack.callback(client.close, timeout=5)
        while len(resources(client)) < count:
            time.sleep(0.2)
        counter, device_key = MessageCounter(), simulated_info().key
        problems = [Problem(64 + number // 97, 64 + number % 97, 64) for number in range(ROUNDS * count)]
        tuning = Tuning(client, problems, {"seconds": SECONDS}, Store(folder / "store"), device_key, counter)
        others = [psutil.Process(process.pid) for process in processes]
        cpu_before = [sum(each.cpu_times()[:2]) for each in others]
        start, own_before = time.monotonic(), time.process_time()
        tuning.run()
        wall_s, own_s = time.monotonic() - start, time.process_time() - own_before
        cpu_s = [sum(each.cpu_times()[:2]) - before for each, before in zip(others, cpu_before)]
        assert (len(tuning.results), counter.failed_count) == (len(problems), 0)
        journals = (folder / "store" / "trials").glob("*.jsonl")
        stored_trials = sum(len(path.read_bytes().splitlines()) - 1 for path in journals)
        assert stored_trials == counter.trials == sum(result.trials for result in tuning.results.values())
        return {
            "workers": count,
            "trials_a_second_of_a_worker": round(counter.trials / len(problems) / SECONDS, 2),
            "problems": len(problems),
            "seconds": round(wall_s, 2),
            "problems_an_hour": round(len(problems) / wall_s * 3600, 1),
            "messages": counter.trials + 3 * len(problems),
            "messages_a_second": round((counter.trials + 3 * len(problems)) / wall_s, 1),
            "client_share_of_a_core": round(own_s / wall_s, 4),
            "scheduler_share_of_a_core": round(cpu_s[0] / wall_s, 4),
            "simulated_workers_share_of_a_core": round(sum(cpu_s[1:]) / wall_s, 4),
            "client_mb": round(psutil.Process().memory_info().rss / 1e6),
        }


def on_gpus(gpus: int) -> dict[str, Any]:
    """Tune the problems on one GPU and at the same time on half of the GPUs, then on all."""
    cores, half = processors(), gpus // 2
    share = len(cores) // gpus
    with ThreadPoolExecutor(2) as pool:
        one_run = pool.submit(tune_on, [0], cores[:share])
        half_run = (
            pool.submit(tune_on, list(range(1, 1 + half)), cores[share : share * (1 + half)]) if half > 1 else None
        )
        runs = [one_run.result(), *([half_run.result()] if half_run else [])]
    runs.append(tune_on(list(range(gpus)), cores))
    rows = [row for row, _ in runs]
    for row in rows:
        row["times_one"] = round(row["problems_an_hour"] / rows[0]["problems_an_hour"], 3)
    return {"processors": len(cores), "runs": rows, "winners_us": runs[-1][1]}


def with_kills(gpus: int, kills: int, undisturbed: dict[str, Any]) -> list[dict[str, Any]]:
    """Tune the problems on all GPUs `kills` times, and kill a worker at a random moment each time."""
    rng, cores, rows = random.Random(27), processors(), []
    undisturbed_s, undisturbed_us = undisturbed["runs"][-1]["seconds"], undisturbed["winners_us"]
    for _ in range(kills):
        row, winners_us = tune_on(list(range(gpus)), cores, rng.uniform(0.1, 0.8) * undisturbed_s)
        slower = max(winners_us[shape] / us for shape, us in undisturbed_us.items()) - 1
        rows.append({**row, "slowest_winner_over_the_undisturbed": round(slower, 4), "winners_us": winners_us})
    return rows


def tune_on(
    gpus: Sequence[int], cores: Sequence[int], kill_after_s: float | None = None
) -> tuple[dict[str, Any], dict[str, float]]:
    """Run the command on GPUs and cores. Return its row, and microseconds of the winner by problem."""
    with tempfile.TemporaryDirectory() as folder:
        log, output = Path(folder) / "measured", Path(folder) / "out.json"
        shapes = [word for shape in SHAPES for word in ("--shape", shape)]
        program = ["taskset", "-c", ",".join(map(str, cores)), sys.executable]
        program += [str(ROOT / "tests" / "support" / "measured.py"), "tune", *shapes]
        program += ["--workers", str(len(gpus)), "--json", str(output), "--store", f"{folder}/store"]
        env = {"MEASURED": str(log), "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), "TILEWRIGHT_CACHE": folder}
        start = time.monotonic()
        process = subprocess.Popen(program, env={**os.environ, **env}, stdout=subprocess.DEVNULL)
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            children = psutil.Process(process.pid).children()
            workers = [each for each in children if "spawn_main" in " ".join(each.cmdline())]
            random.choice(workers).send_signal(signal.SIGKILL)
        status, wall_s = process.wait(), time.monotonic() - start
        results = json.loads(output.read_text())
        measurements = Counter(log.read_text().splitlines())
        problem_seconds = [result["seconds"] for result in results]
        row = {
            "workers": len(gpus),
            "processors": len(cores),
            "killed_after_s": kill_after_s and round(kill_after_s, 1),
            "status": status,
            "problems": len(results),
            "seconds": round(wall_s, 1),
            "problems_an_hour": round(len(results) / wall_s * 3600, 1),
            "seconds_a_problem": round(statistics.median(problem_seconds), 2),
            "longest_problem_s": round(max(problem_seconds), 2),
            "variants_a_problem": statistics.median(result["trials"] for result in results),
            "measured_twice": measurements.total() - len(measurements),
        }
        return row, {str(result["problem"]): result["best"]["measurement"]["median_us"] for result in results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", help="Kernel Tuner cache files")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--pace", type=float, nargs="+", default=[0.0, 25.0], help="trials a second; 0: as recorded")
    parser.add_argument("--gpus", type=int, help="measure on so many GPUs of this machine instead")
    parser.add_argument("--kills", type=int, help="measure so many runs in which a worker is killed")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--host", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host:
        address, count, recording, pace = options.host
        run_workers(address, int(count), recording, float(pace))
        return
    if not options.gpus and (options.kills or not options.recordings):
        parser.error("name --gpus" if options.kills else "name recordings, or --gpus")
    document = json.loads(options.output.read_text()) if options.output.exists() else {}
    facts = {
        "date": f"{datetime.date.today()}",
        "machine": f"{os.cpu_count()} cores, {host_info().name.removeprefix('host ')}",
        "python": platform.python_version(),
        "distributed": dask_version,
    }
    if options.kills:
        document["gpus"]["killed"] = with_kills(options.gpus, options.kills, document["gpus"])
    elif options.gpus:
        document["gpus"] = facts | {"device": detect.choose("cuda").name} | on_gpus(options.gpus)
    else:
        quiet()
        recordings = [str(Path(each).resolve()) for each in options.recordings]
        rows = []
        for pace in options.pace:
            for count in options.workers:
                rows.append(simulate(recordings, count, pace) | {"pace": pace or "recorded"})
                print(json.dumps(rows[-1]), flush=True)
        for row in rows:
            one_worker = next((each for each in rows if each["workers"] == 1 and each["pace"] == row["pace"]), None)
            row["times_one"] = one_worker and round(row["problems_an_hour"] / one_worker["problems_an_hour"], 2)
        names = [Path(each).name for each in recordings]
        settings = {"recordings": names, "seconds_a_problem": SECONDS, "problems_a_worker": ROUNDS}
        document["simulation"] = facts | settings | {"rows": rows}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
