"""A process of its own for what may crash, hang or leave the GPU in error.

It reads one JSON message a line from a socket and answers each with one line. A worker that is only asked to
compile fills the cache and never touches a device; one that is asked to open a device owns it from then on.
"""

import ctypes
import json
import math
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from ...codegen.errors import TilewrightError
from ...codegen.families import parse
from ...codegen.problem import Problem
from ...codegen.render import render
from ...runtime.device.cache import compile_cached
from ...runtime.device.detect import compiler_for, open_device
from ...runtime.device.elf import code_digest
from ...runtime.device.protocol import Device, DeviceInfo
from ...runtime.store.codec import encode
from ..bench.contest import contest, setting
from .evaluate import Bench

_PR_SET_PDEATHSIG = 1


class Worker:
    """Answers messages, each a dict with the key `do`."""

    def __init__(self) -> None:
        self._bench: Bench | None = None
        self._device: Device | None = None

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """What to send back."""
        try:
            return {"ok": True, **self._answer(message["do"], message)}
        except (TilewrightError, MemoryError) as error:
            return {"ok": False, "error": type(error).__name__, "reason": str(error) or type(error).__name__}

    def _answer(self, do: str, message: dict[str, Any]) -> dict[str, Any]:
        problem = Problem.parse(*message["problem"].split()) if "problem" in message else None
        if do == "set up":
            self._device = open_device(DeviceInfo.unpacked(message["info"]))
            return {"setting": encode(setting(self._device))}
        if problem and do == "compile":
            info, config = DeviceInfo.unpacked(message["info"]), parse(message["config"])
            binary = compile_cached(compiler_for(info), render(problem, config, info.arch))
            launched = config.launch_config(problem, info.sm_count), config.edge, config.multiples, config.packs
            return {"code": code_digest(binary.image, (*launched, config.pdl)), "seconds": binary.seconds}
        if problem and do == "open":
            self._bench = Bench(open_device(DeviceInfo.unpacked(message["info"])), problem)
            return {}
        if problem and do == "contest":
            assert self._device is not None, "the device was not opened"
            store = Path(message["store"]) if message["store"] else None
            seconds, turn_seconds = message["seconds"], message["turn_seconds"]
            row = contest(self._device, problem, tuple(message["rivals"]), store, seconds, turn_seconds)
            return {"row": encode(row)}
        assert self._bench is not None, "the device was not opened"
        if do == "try":
            limit = message["stop_above_us"]
            tried = self._bench.try_variant(parse(message["config"]), math.inf if limit is None else limit)
            return {"tried": encode(tried)}
        configs = tuple(map(parse, message["configs"]))
        return {"duel": encode(self._bench.duel(configs, message["rounds"], message["seconds"]))}


def _die_with_parent() -> None:
    # On Linux the kernel ends this process when its parent dies, even in the middle of a variant.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(descriptor: int) -> None:
    """Answer messages on the socket `descriptor` until the other end closes it."""
    _die_with_parent()
    worker = Worker()
    with socket.socket(fileno=descriptor) as connection:
        # Two files: writing to one that is open both ways drops the messages it has read ahead.
        questions, answers = connection.makefile("r", encoding="utf-8"), connection.makefile("w", encoding="utf-8")
        for line in questions:
            answer = worker.answer(json.loads(line))
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
            if answer.get("tried", {}).get("fault"):
                return
