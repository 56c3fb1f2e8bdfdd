"""Results of `tune` on the screen and as JSON."""

import json
import math
import shlex
import textwrap
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.text import Text

from ..codegen.problem import Grade, Problem
from ..runtime.check.roofline import floor_us
from ..runtime.device.protocol import DeviceInfo
from ..runtime.files import is_stream, spared, write_output
from ..runtime.store.codec import encode
from ..tuner.bench.report import contender_columns, figure, interval_text
from ..tuner.bench.rows import vendor_title
from ..tuner.recording.points import ABSENT
from ..tuner.recording.replay import Replayed
from ..tuner.result import Result, load_command, options_of
from ..tuner.settings import AHEAD
from .tables import say, table


def show_result(console: Console, result: Result, store: Path | None) -> None:
    """Print the winner, the contenders, what the run did, and two commands that use the winner."""
    problem, info, best = result.problem, result.device, result.contenders[0]
    us = best.measurement.median_us
    least_us = floor_us(info, problem)
    speed = f"{figure(us)} us, {figure(problem.flops / us / 1e3)} GFLOP/s"
    if least_us:
        speed += f", {least_us / us:.1%} of the bound"
    say(console, f"winner: {best.config}", style="bold")
    say(console, f"  {speed}, {beside_vendor(result)}{_error(result)}", style="bold")
    say(console, *_between(result), *_stored_line(result), "")
    head, first, *others = table(contender_columns(problem, result.contenders, info), console.width)
    first.stylize("bold")
    say(console, head, first, *others, "", *summary(result))
    on_host = "to use it on this processor (for a GPU, tune on that GPU):"
    say(console, on_host if info.arch.is_host else "to use it:")
    for command in _commands(problem, info, store, console.width):
        say(console, Text(f"  {command}"))


def beside_vendor(result: Result) -> str:
    """The winner's ratio to the vendor's library and its interval, or that the duel was too noisy for one."""
    best, vendor = result.contenders[0], vendor_title(result.device)
    if best.ratio_vendor is None:
        return f"too noisy for a ratio to {vendor} (A/A within {result.aa_spread or 0:.0%})"
    return f"{figure(best.ratio_vendor)} x {vendor} ({interval_text(best.interval)})"


def _error(result: Result) -> str:
    """Error of a product whose grade is not `ieee`, beside the vendor's."""
    if result.problem.accuracy is Grade.IEEE:
        return ""
    theirs = next((c.accuracy.worst for c in result.contenders if c.config is None), None)
    beside = "" if theirs is None else f", {vendor_title(result.device)} {theirs:.2g}"
    return f"; error {result.contenders[0].accuracy.worst:.2g} of the bound of {result.problem.accuracy}{beside}"


def _between(result: Result) -> list[str]:
    """Line on the winner with another library's kernel between two products, beside the vendor's library and the next
    variant; none where that was not timed."""
    best, *others = result.contenders
    if best.between_us is None or best.between_ratio is None or best.between_interval is None:
        return []
    ratio, within = figure(best.between_ratio), interval_text(best.between_interval)
    text = f"  {figure(best.between_us)} us, {ratio} x {vendor_title(result.device)} ({within})"
    second = next((each.between_us for each in others if each.config and each.between_us), None)
    runner_up = f", {figure(second / best.between_us)} x the next variant" if second else ""
    return [f"{text}{runner_up} with another library's kernel between two products"]


def not_kept(result: Result) -> str:
    """Reason that the winner was not put in the store; empty where it was."""
    if result.kept:
        return ""
    if result.outdone:
        return "nothing is kept: a record that was not in the final comparison is faster; --replace keeps the winner"
    return "nothing is kept: the winner is what the library runs for this shape already"


def _stored_line(result: Result) -> list[str]:
    """Line on whether the store has the winner; none for the usual case, a new winner of a search."""
    if not result.kept:
        return [f"  {not_kept(result)}"]
    if result.contenders[0].stored:
        return ["  it was stored for this shape already, and stays"]
    return ["  kept: from now on the library runs it for this shape"] if result.named else []


def summary(result: Result) -> list[str]:
    """Lines on what the run did."""
    new = result.trials - result.resumed
    counts = ", ".join(f"{count} {status}" for status, count in result.statuses) or "none"
    phases = result.phases
    idle = "" if result.idle_s is None else f", idle {result.idle_s:.1f}"
    busy = "" if result.busy_share is None else f", measuring {result.busy_share:.0%} of the time after 10 s"
    lines = [
        f"tried {new} variants in {result.seconds:.1f} s, {new / result.seconds:.1f} a second: {counts}; "
        f"{_ended(result)}",
        f"seconds: compile {phases.compile_s:.1f}, verify {phases.verify_s:.1f}, time {phases.time_s:.1f}, "
        f"sampler {result.sampler_s:.1f}{idle}; {result.compilers} compile processes{busy}",
    ]
    if result.guessed_us is not None and not result.named:
        lines.append(f"the best of the first 16 guesses took {figure(result.guessed_us)} us")
    end_to_end = result.best.measurement.end_to_end_us if result.best.measurement else None
    if end_to_end is not None and not result.device.arch.is_host:
        lines.append(f"with the operands copied to the device and the result back: {figure(end_to_end)} us")
    return lines


def _ended(result: Result) -> str:
    """The end of the search, in words."""
    if result.stopped == "gain" and result.expected_gain is not None:
        return f"ended: the next {AHEAD} variants are expected to save {max(0.0, result.expected_gain):.2%}"
    return f"ended by {result.stopped}"


def _commands(problem: Problem, info: DeviceInfo, store: Path | None, width: int) -> tuple[str, str]:
    """A command of tilewright and one of Python that use the winner; on the processor nothing is emitted."""
    options, folder = options_of(problem), [] if store is None else ["--store", str(store)]
    words = ["emit", *options, "--device", info.selector, *folder, "-o", "out"]
    if info.arch.is_host or problem.batch > 1:
        words = ["show", *options, *folder]
    where = f', device="{info.selector}"' + (f", store={json.dumps(str(store))}" if store else "")
    python = load_command(problem, where)
    broken = python.replace("; ", "\n", 1)  # the shell and Python accept two lines as well
    return shlex.join(["tilewright", *words]), python if len(python) + 2 <= width else broken


def show_replay(console: Console, replayed: Replayed) -> None:
    """Print a line for each trial of a replayed search that was the best so far, and a summary."""
    recording = replayed.recording
    size = "x".join(map(str, recording.problem_size))
    say(console, f"{recording.kernel_name} {size}, recorded on {recording.device_name}", style="bold")
    optimum_us = recording.best_us
    space = recording.space()
    varied = {dimension.name for dimension in space.dimensions if len(dimension.choices) > 1}
    best_us = math.inf
    for trial, (point, time_us) in enumerate(replayed.trials, start=1):
        if time_us is not None and time_us < best_us:
            best_us = time_us
            values = ((name, value) for name, value in space.values(point) if name in varied and value != ABSENT)
            settings = ",".join(f"{name}={value}" for name, value in values)
            say(console, f"trial {trial}: {figure(time_us)} us, {optimum_us / time_us:.1%} of the optimum, {settings}")
    say(
        console,
        f"tried {len(replayed.trials)} of {len(space)} recorded variants, which took {replayed.charged_s:,.0f} s to "
        f"record; the best is {replayed.share:.1%} of the optimum; ended by {replayed.stopped}",
    )


_JSON_ATTRIBUTES = (
    "problem best kept contenders aa_spread trials resumed seconds sampler seed sampler_s busy_share idle_s stopped"
).split()
"""Attributes of a Result that its JSON has as they are."""


def result_json(result: Result) -> dict[str, Any]:
    """The result of a run as plain values for JSON."""
    return {
        **{name: encode(getattr(result, name)) for name in _JSON_ATTRIBUTES},
        "device": result.device.name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "statuses": dict(result.statuses),
        "pruned": dict(result.pruned),
        **asdict(result.phases),
        "compile_processes": result.compilers,
        "variants_per_second": (result.trials - result.resumed) / result.seconds,
        "best_of_first_16_us": result.guessed_us,
    }


class ResultsFile:
    """A JSON list of results, as a context: a file is written again after each result, a stream at the end. Where it
    cannot be written, there is an OutputWarning; without a path nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._texts: list[str] = []
        """JSON of each result, encoded once: there may be thousands."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._path and is_stream(self._path) and (self._texts or kind is None):
            self._write(self._path)

    def add(self, result: Result) -> None:
        """Add a result."""
        self._texts.append(textwrap.indent(json.dumps(result_json(result), indent=1), " "))
        if self._path and not is_stream(self._path):
            self._write(self._path)

    def _write(self, path: Path) -> None:
        text = "[\n" + ",\n".join(self._texts) + "\n]\n" if self._texts else "[]\n"
        with spared(path):
            write_output(path, text.encode())
