"""Where the vendor's library is faster than our kernel: by the duel of a record, else timed beside it at first use."""

import statistics
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...codegen.errors import LaunchError
from ...codegen.problem import Problem
from ...runtime.check.timing import Inputs, Timer, TimingPlan
from ...runtime.check.verify import place
from ...runtime.device.protocol import Device, DeviceInfo, Operand
from ...runtime.product.kernel import Kernel, prepare
from ...runtime.product.vendor import Handover, Operands, OwnKernel
from ...runtime.store.found import Found
from ..measure.evaluate import FAILURES, MEASURING, TIE
from ..measure.ratios import paired
from ..measure.rounds import side_by_side

_PLAN = TimingPlan(0.0, 20.0, 100.0, 0.0, 1, 1, rotate_l2=2.5, max_sets=128)
"""Batches of a tenth of a millisecond: a program may meet many shapes. From a graph where a product is short: queued
launches follow each other later, and the library's later than ours."""
_ROUNDS = 9
_LONG_FLOPS, _FEW_ROUNDS = 4e11, 2
"""Products of 10 ms and more have fewer."""
_MOST_BYTES = 1 << 30
"""Of random operands, and of copies: memory that was allocated for them stays with the array library."""
_ON_HOST = "rule: on the processor NumPy is faster than CUDA text"
"""Reason that a product of the processor goes to NumPy."""


def faster(own: OwnKernel, operands: Callable[[], Operands] | None = None) -> Handover | None:
    """That the vendor's library is faster than our kernel; None where it is not, or nobody knows.

    On the processor it is NumPy, unless the user tuned just this shape there. On a GPU a record of just this product
    says it, unless its duel was too noisy. Else both are timed on `operands`, of which C is overwritten, or on random
    ones up to 1 GiB, each nine times in turn: some 10 ms, or twelve products where these take longer. Operands of a
    megabyte and more are copied some times, up to 2.5 times the last-level cache in all, and these are rotated over: as
    in the timing of a record they come from memory.
    """
    problem, device = own.problem, own.device
    if device.info.arch.is_host:
        return untimed(device.info, own.found)
    if min(problem.m, problem.n, problem.k) == 0:
        return None
    kernel, found = own.kernel, own.found
    if found.record is not None and found.origin == "exact" and found.record.ratio_vendor is not None:
        return untimed(device.info, found)
    if operands is None and problem.bytes > _MOST_BYTES:
        return None
    try:
        with MEASURING.alone(), device.entered():
            if device.capturing(device.stream()):
                return None
            return timed(kernel, found, operands() if operands else _random(device, problem))
    except (*FAILURES, RuntimeError):  # no library, no memory (of torch's too): ours serves, and tells what concerns it
        return None


def untimed(info: DeviceInfo, found: Found) -> Handover | None:
    """That the vendor's library is faster than what a look-up gives, as far as it is known without timing."""
    if not info.arch.is_host:
        return by_record(found)
    return None if found.origin == "exact" else Handover(None, None, _ON_HOST)


def by_record(found: Found) -> Handover | None:
    """By the duel that a record comes from: beyond a tie and what the rounds leave open. A library that was wrong on
    that data serves nobody."""
    record = found.record
    if found.origin != "exact" or record is None or record.ratio_vendor is None:
        return None
    ratio, interval = record.ratio_vendor, record.ratio_interval
    if ratio * (1 + TIE) >= 1 or (interval is not None and interval[1] >= 1):
        return None
    wrong = record.accuracy is not None and record.accuracy.vendor is not None and not record.accuracy.vendor <= 1
    us = record.vendor_us or record.median_us * ratio
    why = f"the record of this product: {us:.4g} us for the {record.median_us:.4g} of ours"
    return None if wrong else Handover(us, 1.0, why)


def timed(kernel: Kernel, looked_up: Found, operands: Operands) -> Handover | None:
    """By timing both: where the library is faster in all rounds but one, and beyond a tie. Raises one of FAILURES."""
    device, problem = kernel.device, kernel.problem
    twin = prepare(device, problem, kernel.config)  # what graphs of it hold goes with it
    contenders = {"ours": twin.launch, "vendor": device.vendor(problem)}
    rounds = _ROUNDS if problem.flops < _LONG_FLOPS else _FEW_ROUNDS
    with device.on_stream(operands.stream):
        for launch in contenders.values():  # the library may have to load its kernel
            launch(*operands.each, 1.0, 0.0)
        inputs = [operands.each, *_copies(device, problem, operands)]
        found = side_by_side(Timer(device, problem, plan=_PLAN, inputs=inputs), contenders, rounds)
    ratio, within = paired(found.samples["vendor"], found.samples["ours"])
    if ratio * (1 + TIE) >= 1 or within[1] >= 1:
        return None
    vendor_us, our_us = (statistics.median(found.samples[name]) for name in ("vendor", "ours"))
    regret = None if looked_up.regret is None else max(1.0, looked_up.regret * ratio)
    return Handover(vendor_us, regret, f"timing both at first use: {vendor_us:.4g} us for the {our_us:.4g} of ours")


def _copies(device: Device, problem: Problem, operands: Operands) -> list[Inputs]:
    """Further sets of operands, each matrix of all sets in one allocation, as in the timing of records. None where so
    many of them would lie in the cache as well, or there is no memory, or they are views that lie far apart."""
    count, size = _PLAN.cold_sets(device, problem) - 1, problem.dtype.size_bytes
    spread = sum(each.rows * each.ld for each in operands.each) * size

    def copies(given: Operand, filled: bool) -> list[Operand]:
        step = given.rows * given.ld * size
        stack = device.allocate(count * step)
        copied = [replace(given, pointer=stack.pointer + i * step, owner=stack) for i in range(count)]
        nbytes = step - (given.ld - given.cols) * size  # what follows may not be the caller's
        for each in copied if filled else ():
            device.copy(each.pointer, given.pointer, nbytes, operands.stream)
        return copied

    if not 0 < count < _PLAN.max_sets or count * spread > _MOST_BYTES:
        return []
    a, b, c = operands.each
    try:
        return list(zip(copies(a, True), copies(b, True), copies(c, False), strict=True))
    except LaunchError:
        return []


def _random(device: Device, problem: Problem) -> Operands:
    rng = np.random.default_rng(11)
    a, _ = place(device, problem, problem.stored_a, problem.trans_a, rng)
    b, _ = place(device, problem, problem.stored_b, problem.trans_b, rng)
    c = device.allocate(problem.m * problem.n * problem.dtype.size_bytes)
    return Operands((a, b, Operand(c.pointer, problem.m, problem.n, problem.n, False, c)), device.stream())
