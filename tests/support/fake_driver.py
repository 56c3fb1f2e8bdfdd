"""A driver library in C that records launches instead of carrying them out, and a fake GPU that uses it."""

import ctypes
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.codegen.arch import ARCHES
from tilewright.codegen.errors import ArgumentTypeError, LaunchError
from tilewright.codegen.source import LaunchConfig
from tilewright.runtime.device import driver
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Binary, Launcher

SIZES = {"Q": 8, "i": 4, "I": 4, "f": 4, "d": 8, "m": 128}
"""Bytes of an argument by its code."""
_TEXT = r"""
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

typedef struct { int id, pad, value; char rest[60]; } Attribute;
typedef struct { unsigned grid[3], block[3], smem; void *stream; Attribute *attributes; unsigned count; } Config;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned char text[1 << 22];
static size_t used;
static int statuses[64], answers, waits, opened;

void answer(int count, const int *values) { memcpy(statuses, values, sizeof(int) * count); answers = count; }
void wait_for_gate(int whether) { waits = whether; opened = 0; }
void open_gate(void) { opened = 1; }
size_t taken(unsigned char *to) { size_t count = used; memcpy(to, text, count); used = 0; return count; }

static void put(const void *from, size_t size) { memcpy(text + used, from, size); used += size; }

/* A function is the address of numbers: how many arguments it has, then the bytes of each. */
int cuLaunchKernelEx(const Config *config, const int *function, void **arguments, void **extra)
{
    if (waits) { /* as a launch waits for room in a full queue */
        struct timespec moment = {0, 1000000};
        for (int i = 0; i < 5000 && !*(volatile int *)&opened; i++)
            nanosleep(&moment, 0);
        if (!opened)
            return 999;
    }
    unsigned char own[4096], *end = own;
    for (int i = 0; i < function[0]; i++) {
        size_t size = (size_t)function[1 + i];
        memcpy(end, arguments[i], size / 2);
        sched_yield(); /* so that another thread can overwrite the rest, where memory is shared */
        memcpy(end + size / 2, (char *)arguments[i] + size / 2, size - size / 2);
        if (size == 128 && (size_t)arguments[i] % 64)
            return 716;
        end += size;
    }
    pthread_mutex_lock(&mutex);
    int total = (int)(end - own), status = 0, kind[3] = {0, 0, 0};
    for (unsigned i = 0; i < config->count; i++) {
        kind[0]++;
        kind[1] = config->attributes[i].id;
        kind[2] = config->attributes[i].value;
    }
    put(&total, sizeof total);
    put(&function, sizeof function);
    put(config->grid, sizeof config->grid);
    put(config->block, sizeof config->block);
    put(&config->smem, sizeof config->smem);
    put(&config->stream, sizeof config->stream);
    put(kind, sizeof kind);
    put(own, (size_t)total);
    if (answers) {
        status = statuses[0];
        memmove(statuses, statuses + 1, sizeof(int) * --answers);
    }
    pthread_mutex_unlock(&mutex);
    return extra ? 1 : status;
}
"""
_HEAD = struct.Struct("=iQ3I3IIQ3i")


@dataclass(frozen=True, slots=True)
class Seen:
    """One launch as the driver received it."""

    function: int
    """Address of the function, which holds the sizes of its arguments."""
    grid: tuple[int, ...]
    block: tuple[int, ...]
    smem_bytes: int
    stream: int
    attribute: tuple[int, int, int]
    """Number of attributes, and the number and value of the last."""
    arguments: bytes
    """Bytes of all arguments, one after the other."""


class FakeDriver:
    """The driver library, with cuLaunchKernelEx as its only function of CUDA."""

    def __init__(self, folder: Path) -> None:
        path = folder / "libfake.so"
        command = ["cc", "-x", "c", "-O1", "-shared", "-fPIC", "-pthread", "-o", str(path), "-"]
        subprocess.run(command, input=_TEXT, text=True, check=True)
        self.library = ctypes.CDLL(str(path))
        self.library.taken.restype = ctypes.c_size_t
        self._buffer = ctypes.create_string_buffer(1 << 22)
        self._functions: dict[str, Any] = {}

    def function(self, codes: str) -> int:
        """Address of a function with arguments of these codes."""
        if codes not in self._functions:
            self._functions[codes] = (ctypes.c_int * (1 + len(codes)))(len(codes), *(SIZES[code] for code in codes))
        return ctypes.addressof(self._functions[codes])

    def answer(self, *statuses: int) -> None:
        """Set the statuses that the next launches return; later launches return 0."""
        self.library.answer(len(statuses), (ctypes.c_int * max(1, len(statuses)))(*statuses))

    def taken(self) -> list[Seen]:
        """Launches since the last call of this method."""
        size = self.library.taken(self._buffer)
        data, launches, at = self._buffer.raw[:size], list[Seen](), 0
        while at < len(data):
            total, function, *rest = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            grid, block, smem, stream, kind = rest[:3], rest[3:6], rest[6], rest[7], rest[8:]
            arguments = data[at : at + total]
            launches.append(Seen(function, tuple(grid), tuple(block), smem, stream, tuple(kind), arguments))
            at += total
        return launches


def failed(status: int) -> LaunchError:
    """The error that a launch of the fake GPU raises."""
    return LaunchError(f"status {status}")


@dataclass
class FakeFunction:
    """A kernel of the fake GPU."""

    driver: FakeDriver
    enter: Callable[[], None]

    def bound(self, launch: LaunchConfig, codes: str) -> Launcher:
        return driver.driver_launch(self.driver.function(codes), launch, codes, True, self.enter, failed)


class FakeGpu(HostDevice):
    """A GPU whose launches go to the fake driver and whose memory is the processor's."""

    def __init__(self, fake: FakeDriver) -> None:
        super().__init__()
        self.driver, self.index, self.captured, self.entries = fake, 0, set[int](), 0
        self._info = replace(super().info, arch=ARCHES["sm_90a"], sm_count=132, selector="cuda:0")

    @property
    def info(self) -> Any:
        return self._info

    def load(self, binary: Binary, name: str) -> Any:
        return FakeFunction(self.driver, self._enter)

    def _enter(self) -> None:
        self.entries += 1

    def current(self) -> int:
        return self.index

    def capturing(self, stream: int) -> bool:
        return stream in self.captured

    def identity(self, stream: int, capturing: bool) -> tuple[int, int]:
        return int(capturing), stream

    def tensor_map(self, pointer: int, *args: Any, **kwargs: Any) -> bytes:
        return struct.pack("=Q120x", pointer)


class FakeArray:
    """An array in memory of a GPU, which nobody reads."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer


class FakeKind:
    """A library of such arrays that lists the arrays that were written."""

    autograd = True

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.current_stream = 0

    def tracked(self, a: Any, b: Any, out: Any) -> bool:
        return False

    def pointer(self, array: FakeArray) -> int:
        return array.pointer

    def view(self, name: str, array: FakeArray) -> None:
        if not array.pointer:
            raise ArgumentTypeError(f"{name} has no memory")

    def stream(self, index: int) -> int:
        return self.current_stream

    def wrote(self, array: Any) -> None:
        self.written.append(array)

    def empty(self, like: Any, shape: tuple[int, ...]) -> FakeArray:
        return FakeArray(1 << 44)
