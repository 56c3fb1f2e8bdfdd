"""A process of its own for what may crash, hang or leave the GPU in error.

It reads one JSON message a line from a socket and answers each with one line. A worker that is only asked to
compile fills the cache and never touches a device; one that is asked to open a device owns it from then on.
"""

import ctypes
import dataclasses
import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any, cast

from ...codegen.arch import arch_named
from ...codegen.config import Config
from ...codegen.errors import TilewrightError
from ...codegen.problem import Problem
from ...codegen.render import render
from ...runtime.device.cache import compile_cached
from ...runtime.device.detect import compiler_for, open_device
from ...runtime.device.elf import code_digest
from ...runtime.device.protocol import Device, DeviceInfo
from ...runtime.store.codec import decode, encode
from ..bench.contest import contest, setting
from .evaluate import Bench

__all__ = ["main", "pack_info", "unpack_info"]

_PR_SET_PDEATHSIG = 1


def pack_info(info: DeviceInfo) -> dict[str, Any]:
    """A device's facts as JSON; its arch by name."""
    fields = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
    return {**fields, "arch": info.arch.name}


def unpack_info(message: dict[str, Any]) -> DeviceInfo:
    """What `pack_info` packed."""
    return DeviceInfo(**{**message, "arch": arch_named(message["arch"])})


class Worker:
    """Answers messages, each a dict with the key `do`."""

    def __init__(self) -> None:
        self._bench: Bench | None = None
        self._device: Device | None = None

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """What to send back."""
        do = message["do"]
        try:
            if do == "compile":
                return self._compile(message)
            if do == "open":
                info = unpack_info(message["info"])
                problem = cast(Problem, decode(Problem, message["problem"], "message"))
                self._bench = Bench(open_device(info), problem)
                return {"ok": True}
            if do == "set up":
                self._device = open_device(unpack_info(message["info"]))
                return {"ok": True, "setting": encode(setting(self._device))}
            if do == "contest":
                return self._contest(message)
            assert self._bench is not None, "the device was not opened"
            if do == "try":
                limit = message["stop_above_us"]
                config = Config.parse(message["config"])
                tried = self._bench.try_variant(config, float("inf") if limit is None else limit)
                return {"ok": True, "tried": encode(tried)}
            configs = tuple(map(Config.parse, message["configs"]))
            return {"ok": True, "duel": encode(self._bench.duel(configs, message["rounds"], message["seconds"]))}
        except (TilewrightError, MemoryError) as error:
            return {"ok": False, "error": type(error).__name__, "reason": str(error) or type(error).__name__}

    def _contest(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._device is not None, "the device was not opened"
        problem = cast(Problem, decode(Problem, message["problem"], "message"))
        store = Path(message["store"]) if message["store"] else None
        seconds, turn_seconds = message["seconds"], message["turn_seconds"]
        row = contest(self._device, problem, tuple(message["rivals"]), store, seconds, turn_seconds)
        return {"ok": True, "row": encode(row)}

    @staticmethod
    def _compile(message: dict[str, Any]) -> dict[str, Any]:
        info = unpack_info(message["info"])
        problem = cast(Problem, decode(Problem, message["problem"], "message"))
        source = render(problem, Config.parse(message["config"]), info.arch)
        binary = compile_cached(compiler_for(info), source)
        return {"ok": True, "code": code_digest(binary.image, source), "seconds": binary.seconds}


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
