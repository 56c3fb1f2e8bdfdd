"""Timing of work that is queued on a device, without the time that the processor takes to queue it."""

import time
from collections.abc import Callable
from typing import Any

_LEAST_US, _MOST_US = 50.0, 20e3
"""Bounds of the microseconds for which the device is held back."""
_NEGLIGIBLE = 0.001
"""Largest share of a time that queueing may add to it."""
HOLD_NAME = "hold_device"
HOLD = """\
// Keeps a stream busy for a number of nanoseconds.
extern "C" __global__ void hold_device(unsigned long long nanoseconds)
{
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < nanoseconds);
}
"""


class Stopwatch:
    """Events around work. The device is held back until all of the work is queued, as otherwise the time in which it
    waits for a busy processor would count."""

    def __init__(
        self, hold: Callable[[float], None], start: Any, end: Any, between_us: Callable[[Any, Any], float]
    ) -> None:
        """`hold` queues a kernel that keeps the device busy for a number of microseconds. `start` and `end` are events
        of the device: record() queues one, synchronize() waits for it."""
        self._hold, self._start, self._end, self._between_us = hold, start, end, between_us
        self._hold_us = _LEAST_US

    def elapsed_us(self, run: Callable[[], None]) -> float:
        """Microseconds that the work of `run` takes on the device. It runs again if queueing took longer than the
        device was held back."""
        held_us = self._hold_us
        while True:
            begin = time.perf_counter()
            self._hold(held_us)
            self._start.record()
            run()
            self._end.record()
            queued_us = (time.perf_counter() - begin) * 1e6
            self._end.synchronize()
            elapsed_us = self._between_us(self._start, self._end)
            if queued_us <= held_us + _NEGLIGIBLE * elapsed_us or held_us == _MOST_US:
                self._hold_us = min(max(2 * queued_us, _LEAST_US), _MOST_US)
                return elapsed_us
            # The next try may need less time than this one took: the first launch of a graph takes milliseconds.
            held_us = min(2 * held_us, _MOST_US)
