"""Times what is queued on a device, and not how long the processor takes to queue it."""

import time
from collections.abc import Callable
from typing import Any

_LEAST_US, _MOST_US = 50.0, 20e3
_NOTHING = 0.001
"""Of a time, what the processor may add to it."""
HOLD_NAME = "hold_device"
HOLD = """\
// Keeps a stream busy for so many nanoseconds.
extern "C" __global__ void hold_device(unsigned long long nanoseconds)
{
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < nanoseconds);
}
"""


class Stopwatch:
    """Events around work. The device is held back until all of it is queued: were the device to wait for the processor,
    which may be busy with other things, that would be timed too."""

    def __init__(
        self, hold: Callable[[float], None], start: Any, end: Any, between_us: Callable[[Any, Any], float]
    ) -> None:
        """`hold` queues what keeps the device busy for so many microseconds. `start` and `end` are events of the
        device: record() queues one, synchronize() waits for it."""
        self._hold, self._start, self._end, self._between_us = hold, start, end, between_us
        self._hold_us = _LEAST_US

    def elapsed_us(self, run: Callable[[], None]) -> float:
        """Microseconds that what `run` queues takes on the device. It runs again where queueing took longer than the
        device was held."""
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
            if queued_us <= held_us + _NOTHING * elapsed_us or held_us == _MOST_US:
                self._hold_us = min(max(2 * queued_us, _LEAST_US), _MOST_US)
                return elapsed_us
            # Not twice what it took: the first launch of a graph takes milliseconds, the next ones do not.
            held_us = min(2 * held_us, _MOST_US)
