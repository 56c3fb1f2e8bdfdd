"""Processes and threads: forks, the end of the interpreter, signal handlers, limits, and times of one thread."""

import gc
import inspect
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits
from tilewright.codegen.errors import LaunchError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.check.timing import Timer
from tilewright.runtime.device import host
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Launch, Operand
from tilewright.runtime.locks import Lock, one_thread
from tilewright.runtime.product.gemm import Gemm
from tilewright.runtime.product.kernel import prepare
from tilewright.runtime.product.vendor import OwnKernel
from tilewright.runtime.store.lookup import LookupResult
from tilewright.tuner.bench import contest

PLAIN = "tiled:16"
SPLIT = "simt:32x32x16,thread=4x4,split_k=4"
"""The last CTA at a counter adds up partial sums, so a product that never ends leaves the counter half-way."""


def gemm_of(kernel):  # type: ignore[no-untyped-def]
    """A kernel as `load` returns it; the programs below have this function too."""
    own = OwnKernel(kernel.device, kernel.problem, LookupResult(kernel.config, "default"), lambda lookup: lookup)
    own.compiled = kernel
    return Gemm(own, None, lambda: None)


KERNELS = f"""
import numpy as np
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.product.gemm import Gemm
from tilewright.runtime.product.kernel import prepare
from tilewright.runtime.product.vendor import OwnKernel
from tilewright.runtime.store.lookup import LookupResult

{inspect.getsource(gemm_of)}
device, problem = HostDevice(), Problem(35, 40, 512)
kernels = [gemm_of(prepare(device, problem, config))
           for config in (parse({PLAIN!r}), parse({SPLIT!r}))]
rng = np.random.default_rng(0)
a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((35, 512), (512, 40)))
product = a @ b

def right(*_):
    return all(np.array_equal(kernel(a, b), product) for kernel in kernels)
"""


def output_of(program: str, **environment: str) -> str:
    """Run a program, which has to succeed and to warn of nothing, and return its output."""
    command = [sys.executable, "-c", program]
    env = os.environ | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# ---- Forks -----------------------------------------------------------------------------------------------------

FORKS = (
    KERNELS
    + """
import multiprocessing, os, signal, threading
from concurrent.futures import ProcessPoolExecutor

ending = threading.Event()
def work(kernel):
    while not ending.is_set():
        kernel(a + 1, b)
threads = [threading.Thread(target=work, args=(kernel,), daemon=True) for kernel in kernels]
for thread in threads:
    thread.start()
for _ in range(20):
    if not (child := os.fork()):
        signal.alarm(60)
        os._exit(not right())
    assert os.waitpid(child, 0)[1] == 0
context = multiprocessing.get_context("fork")
with context.Pool(2) as pool:
    assert all(pool.map(right, range(4)))
with ProcessPoolExecutor(2, mp_context=context) as pool:
    assert all(pool.map(right, range(4)))
ending.set()
for thread in threads:
    thread.join()
"""
)


def test_children_multiply_while_threads_of_their_parent_do() -> None:
    """Nearly every fork comes in the middle of products, which use the same memory."""
    output_of(f"import warnings; warnings.simplefilter('ignore')  # forks warn of threads\n{FORKS}")


NUMPYS = """
import os, signal, threading, warnings
import numpy as np
from tilewright import load, matmul
warnings.simplefilter("ignore")  # forks warn of threads
a = np.ones((200, 200), np.float32)
assert load(200, 200, 200, device="host").origin == "vendor"
ending = threading.Event()
def work():
    while not ending.is_set():
        matmul(a, a, device="host")
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
signal.alarm(100)
for _ in range(20):
    if not (child := os.fork()):
        signal.alarm(60)
        os._exit(not (matmul(a, a, device="host") == 200).all())
    assert os.waitpid(child, 0)[1] == 0
ending.set()
"""


def test_a_fork_waits_for_products_of_numpy() -> None:
    """Otherwise OpenBLAS would wait for ever, within the fork, for busy threads of its own."""
    output_of(NUMPYS, OPENBLAS_NUM_THREADS="2", TILEWRIGHT_VENDOR="auto")


def test_a_first_product_on_the_processor_imports_nothing() -> None:
    """A child that is forked meanwhile would wait for the lock of a module that a thread of its parent imports."""
    program = """
import sys
from tilewright import matmul
before = {name for name in sys.modules if name.startswith("tilewright")}
import numpy as np
for vendor in ("auto", "never"):
    matmul(np.ones((4, 5)), np.ones((5, 6)), device="host", vendor=vendor)
print(sorted({name for name in sys.modules if name.startswith("tilewright")} - before))
"""
    assert output_of(program) == "[]\n"


LOCKS = """
import os, signal, threading, warnings
from tilewright.runtime.locks import CachedProperty, Lock
warnings.simplefilter("ignore")  # forks warn of threads
waiting, ending = threading.Event(), threading.Event()

class Guarded:
    def __init__(self):
        self.lock, self.renewed = Lock(self.renew), 0

    def renew(self):
        with other.alone(), self.lock.alone():
            self.renewed += 1

    @CachedProperty
    def slow(self):
        waiting.set()
        return ending.wait()

def child_is_well(held):
    if child := os.fork():
        return os.waitpid(child, 0)[1] == 0
    signal.alarm(60)
    ending.set()
    os._exit(not (one.lock.acquire(blocking=False) and one.renewed == held and one.slow))

one, other = Guarded(), Lock()
assert child_is_well(held=False)
with one.lock.alone():
    assert child_is_well(held=False)  # held by the thread that forks, which goes on
def hold():
    with other.alone(), one.lock.alone():
        one.slow
thread = threading.Thread(target=hold, daemon=True)
thread.start()
waiting.wait()
assert child_is_well(held=True)
ending.set()
thread.join()
assert one.renewed == 0  # the parent renews nothing
"""


def test_a_childs_locks_are_free_and_what_was_half_way_under_them_is_renewed() -> None:
    output_of(LOCKS)


def test_a_lock_does_not_keep_what_it_guards() -> None:
    class Guarded:
        """An object with a lock that renews it."""

        def __init__(self) -> None:
            self.lock = Lock(self.renew)

        def renew(self) -> None:
            """Nothing."""

    gc.disable()
    try:
        guarded = Guarded()
        gone = weakref.ref(guarded)
        del guarded
        assert gone() is None
    finally:
        gc.enable()


def test_a_child_of_a_process_that_was_importing_gets_an_error() -> None:
    """Python has a lock for each module, and no child can renew those."""
    program = """
import os, signal, sys, threading, warnings
import tilewright
warnings.simplefilter("ignore")
reached, ending = threading.Event(), threading.Event()
class Slow:
    __spec__ = None
    def __getattr__(self, name):
        reached.set()
        ending.wait()
sys.modules["tilewright.codegen.bundle"] = Slow()  # which `tilewright.api` imports
thread = threading.Thread(target=lambda: tilewright.matmul)
thread.start()
reached.wait()
if not (child := os.fork()):
    signal.alarm(60)
    try:
        tilewright.matmul
    except ImportError as error:
        print(error, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
ending.set()
thread.join()
tilewright.matmul
"""
    message = "forked while another thread imported tilewright: import what is called before threads start, as by `from"
    assert message in output_of(program)


# ---- The end of the interpreter --------------------------------------------------------------------------------

AT_EXIT = """
import atexit
atexit.register(lambda: print(right()))  # it runs after the handlers of later imports
"""
FINALIZER = """
class Last:
    def __init__(self):
        self.kernels, self.a, self.b, self.write = kernels, a, b, __import__("os").write

    def __del__(self):
        for kernel in self.kernels:
            self.write(1, b"%d " % kernel(self.a, self.b).size)
last = Last()
"""
DAEMON = """
import threading, time
long = gemm_of(prepare(device, Problem(500, 500, 500), parse("tiled:16")))
a = np.ones((500, 500), np.float32)
threading.Thread(target=long, args=(a, a), daemon=True).start()  # takes half a second; the interpreter ends before
time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("program", "prints"),
    [
        (f"{AT_EXIT}{KERNELS}assert right()", "True\n"),
        (f"{KERNELS}{FINALIZER}", "1400 1400 "),
        (f"{KERNELS}assert right()\n{FINALIZER}", "1400 1400 "),
        (f"{KERNELS}{DAEMON}", ""),
    ],
    ids=["atexit", "finalizer, first call", "finalizer", "daemon thread"],
)
def test_the_interpreter_ends_well(program: str, prints: str) -> None:
    assert output_of(program) == prints


# ---- Calls in calls --------------------------------------------------------------------------------------------

HANDLER = (
    KERNELS
    + """
import signal
from tilewright.codegen.errors import LaunchError
assert right()
outcomes, other = set(), gemm_of(prepare(device, Problem(3, 4, 5), parse("tiled:16")))
def handle(*_):
    assert (other(a[:3, :5], b[:5, :4]) == a[:3, :5] @ b[:5, :4]).all()
    for number, kernel in enumerate(kernels):
        try:
            outcomes.add((number, np.array_equal(kernel(a, b), product)))
        except LaunchError as error:
            outcomes.add((number, str(error).count("\\n"), "signal handler" in str(error)))
signal.signal(signal.SIGUSR1, handle)
for number, kernel in enumerate(kernels):
    entry = kernel.kernel._main._function.entry
    def interrupted(*arguments, entry=entry):
        failure = entry(*arguments)
        signal.raise_signal(signal.SIGUSR1)
        return failure
    kernel.kernel._main._function.entry = interrupted
    assert np.array_equal(kernel(a + 1, b), (a + 1) @ b)
    kernel.kernel._main._function.entry = entry
    assert outcomes == {(number, 0, True), (1 - number, True)}
    outcomes.clear()
assert right()
"""
)


def test_a_signal_handler_may_call_any_kernel_but_the_one_that_it_interrupts() -> None:
    output_of(HANDLER)


# ---- Limits ----------------------------------------------------------------------------------------------------


LIMITS = (
    KERNELS
    + """
import gc, os, resource
from tilewright.runtime.product.kernel import Kernel

config = parse("simt:64x64x16,thread=4x8,load=cp_async,stages=2")
first = prepare(device, problem, config)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (600 << 20),) * 2)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 16,) * 2)
parts = first.fit, first.source, first.binary
more = [gemm_of(Kernel(device, problem, *parts)) for _ in range(80)]
assert all(np.array_equal(kernel(a, b), product) for kernel in more)
def mapped():
    return open("/proc/self/maps").read().count("memfd:" + first.source.name)
mapped_by_all = mapped()
del more[1:]
gc.collect()
assert 0 < mapped() <= mapped_by_all // 20
assert np.array_equal(more[0](a, b), product)
"""
)


def test_kernels_share_address_space_and_keep_no_descriptors() -> None:
    """80 more kernels with cp.async fit into 600 MB and 16 descriptors beyond those that the process has."""
    output_of(LIMITS)


def test_too_little_address_space_is_a_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    device, problem = host.HostDevice(), Problem(8, 8, 8)
    kernel = gemm_of(prepare(device, problem, parse(PLAIN)))
    a = np.ones((8, 8), np.float32)
    monkeypatch.setattr(host, "_free", [])
    monkeypatch.setattr(kernel.kernel._main, "_nbytes", 1 << 60)
    with pytest.raises(LaunchError, match=r"no address space for \d+ bytes of stacks .*: raise the limit"):
        kernel(a, a)


# ---- Times on the processor are those of one thread, NumPy's too ------------------------------------------------


PROBLEM = Problem(9, 8, 7)


def most_threads() -> int:
    """The largest number of threads of a library that multiplies."""
    return max(each["num_threads"] for each in threadpool_info())


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Gives libraries two threads each, and checks that they have two when the test ends."""
    with threadpool_limits(2):
        yield
        assert most_threads() == 2


class Noting(HostDevice):
    """The host device, which notes how many threads NumPy has each time it multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    def vendor(self, *arguments: Any) -> Launch:
        launch = super().vendor(*arguments)

        def noting(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            self.noted.append(most_threads())
            launch(a, b, c, alpha, beta)

        return noting


@pytest.mark.parametrize("way", ["ready", "sample", "measure", "rounds", "turns", "eager", "end to end"])
def test_each_way_of_timing(way: str, two_threads: None) -> None:
    device = Noting()
    timer, launch = Timer(device, PROBLEM), device.vendor(PROBLEM)
    timed = timer.ready(launch)
    device.noted.clear()
    {
        "ready": lambda: timer.ready(launch),
        "sample": lambda: timer.sample_us(timed),
        "measure": lambda: timer.measure(launch),
        "rounds": lambda: timer.rounds({"numpy": launch}, 2),
        "turns": lambda: timer.rounds({"numpy": launch}, 1, turn_seconds=0.001),
        "eager": lambda: timer.eager({"numpy": launch}),
        "end to end": lambda: timer.end_to_end_us(launch),
    }[way]()
    assert set(device.noted) == {1}


def test_a_contest_with_numpy(two_threads: None) -> None:
    device = Noting()
    result = contest.contest(device, PROBLEM, ("numpy",), None, 0.01)
    assert [rival.key for rival in result.rivals] == ["numpy"]
    timed = device.noted[device.noted.index(1) :]  # checks come before, with two threads
    assert len(timed) > 7
    assert set(timed) == {1}


def test_threads_with_that_limit_take_turns() -> None:
    """Otherwise one thread might restore the limit of another for good."""
    entered, leave, seen = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        with one_thread(), one_thread():
            entered.set()
            leave.wait(10)
            seen.append("first")

    def second() -> None:
        with one_thread():
            seen.append("second")

    threads = [threading.Thread(target=each) for each in (first, second)]
    threads[0].start()
    assert entered.wait(10)
    threads[1].start()
    threads[1].join(0.05)
    leave.set()
    for thread in threads:
        thread.join(10)
    assert seen == ["first", "second"]
