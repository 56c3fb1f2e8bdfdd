"""A worker process, for work that may crash, hang or leave the GPU in error.

It reads questions from a connection, each the name of a method of `Worker` and its arguments, and answers them. A
worker that only compiles fills the cache and never touches a device; a worker that opened a device owns it.
"""

import contextlib
import ctypes
import os
import signal
import warnings
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ...codegen.config import Config
from ...codegen.errors import TilewrightError
from ...codegen.legality import fitted
from ...codegen.problem import Grade, Problem
from ...codegen.render import render
from ...runtime.device.cache import CacheWarning, compile_cached, mark_private
from ...runtime.device.detect import compiler_for, open_device
from ...runtime.device.elf import code_digest
from ...runtime.device.protocol import Device, DeviceInfo
from ...runtime.store.store import StoreWarning

if TYPE_CHECKING:  # methods import these: many workers only compile, and workers start often
    from ..bench.rows import BenchRow, Setting
    from .evaluate import Bench

_PR_SET_PDEATHSIG = 1
_OURS = (CacheWarning, StoreWarning)
"""Warnings that the parent shows."""
_NICE = 10
"""Niceness of a process that compiles: a process that measures comes first."""


class Worker:
    """The methods that a parent may call, beside those of `Bench` for the problem that was opened."""

    _bench: "Bench | None" = None
    _device: Device

    def answer(self, question: tuple[Any, ...]) -> object:
        """The value of the method that is named first, or the error that it raises."""
        name, *arguments = question
        try:
            return getattr(self if hasattr(self, name) else self._bench, name)(*arguments)
        except (TilewrightError, MemoryError) as error:
            return error

    def compile(self, info: DeviceInfo, problem: Problem, config: Config) -> tuple[str, float]:
        """Compile a variant into the cache. Returns a digest of machine code and launch, and the seconds it took."""
        os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
        fit = fitted(problem, config, info)
        source = render(problem, config, info, fit)
        binary = compile_cached(compiler_for(info), source)
        first = source.preparation and source.preparation.name
        launched = config.launch_config(problem, info.sm_count), fit.edge, config.multiples, first, config.pdl
        return code_digest(binary.image, launched), binary.seconds

    def open(self, info: DeviceInfo, problem: Problem) -> None:
        """Open a device, to try variants of one problem."""
        from .evaluate import Bench

        self._bench = None  # frees the memory of the problem before
        self._bench = Bench(open_device(info), problem)

    def set_up(self, info: DeviceInfo, grades: tuple[Grade, ...]) -> "Setting":
        """Open a device, to compare with other libraries there in products of these grades."""
        from ..bench.rivals import setting

        self._device = open_device(info)
        return setting(self._device, grades)

    def contest(self, *arguments: Any) -> "BenchRow":
        """Call `contest` on the device."""
        from ..bench.contest import contest

        return contest(self._device, *arguments)


def main(descriptor: int, mark: str) -> None:
    """Answer questions on the connection `descriptor` until the other end closes it, with the warnings that came
    meanwhile; files that this process may leave behind bear the `mark`."""
    # The kernel ends this process when its parent dies, even in the middle of a variant.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    mark_private(mark)
    worker, connection = Worker(), Connection(descriptor)
    with contextlib.suppress(EOFError):
        while True:
            question = connection.recv()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                answer = worker.answer(question)
            connection.send((answer, [each.message for each in caught if issubclass(each.category, _OURS)]))
            if getattr(answer, "fault", False):  # a variant left the device in error
                return
