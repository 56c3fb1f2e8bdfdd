"""Vendor fallback: handover to the vendor's library where it is faster, by a record's duel or timed at first use."""

import statistics
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...codegen.errors import LaunchError
from ...codegen.problem import Problem
from ...runtime.check.timing import Inputs, Timer, TimingPlan
from ...runtime.check.verify import place_all
from ...runtime.device.protocol import ALIGNED_BYTES, Device, DeviceInfo, Operand, aligned_bytes
from ...runtime.product.kernel import Kernel, prepare
from ...runtime.product.vendor import Operands, OwnKernel, VendorFallback
from ...runtime.store.lookup import LookupResult
from ..measure.evaluate import FAILURES, MEASURING, TIE
from ..measure.ratios import paired
from ..measure.rounds import side_by_side

_PLAN = TimingPlan(0.0, 20.0, 100.0, 0.0, 1, 1, rotate_l2=2.5, max_sets=128)
"""Batches of a tenth of a millisecond, as a program may use many shapes. Short products are launched from a graph:
queued launches have gaps, and the library's are longer than ours."""
_ROUNDS = 9
"""Number of rounds of a comparison."""
_LONG_FLOPS, _FEW_ROUNDS = 4e11, 2
"""Operations from which a product, which takes 10 ms or more, is timed in few rounds, and number of these rounds."""
_MOST_BYTES = 1 << 30
"""Most bytes of random operands and of copies: the array library keeps the memory that was allocated for them."""
_ON_HOST = "rule: on the processor NumPy is faster than CUDA text"
"""Reason that a product of the processor goes to NumPy."""


def faster(own: OwnKernel, operands: Callable[[], Operands] | None = None) -> VendorFallback | None:
    """The handover to the vendor's library where it is known to be faster than our kernel; else None.

    On the processor NumPy is faster, unless the user tuned exactly this shape there. On a GPU a record of exactly this
    product decides, unless its duel was too noisy. Without such a record both are timed on `operands`, whose C is
    overwritten, or on random ones up to 1 GiB. Each runs nine times in turn, which takes some 10 ms, or twelve products
    where these take longer. Operands of a megabyte and more are copied until the copies fill 2.5 times the last-level
    cache, and the timing rotates over them, so that they come from memory, as in the timing of a record.
    """
    problem, device = own.problem, own.device
    if device.info.arch.is_host:
        return untimed(device.info, own.looked_up)
    if min(problem.m, problem.n, problem.k) == 0:
        return None
    kernel, lookup = own.kernel, own.looked_up
    if lookup.record is not None and lookup.origin == "exact" and lookup.record.ratio_vendor is not None:
        return untimed(device.info, lookup)
    if operands is None and problem.bytes > _MOST_BYTES:
        return None
    try:
        with MEASURING.alone(), device.entered():
            if device.capturing(device.stream()):
                return None
            return by_timing(kernel, lookup, operands() if operands else _random(device, problem))
    except (*FAILURES, RuntimeError):  # without a library or memory (torch's too) ours serves, or raises its own error
        return None


def untimed(info: DeviceInfo, lookup: LookupResult) -> VendorFallback | None:
    """The handover to the vendor's library where it is known to be faster without timing; else None."""
    if not info.arch.is_host:
        return by_record(lookup)
    return None if lookup.origin == "exact" else VendorFallback(None, None, _ON_HOST)


def by_record(lookup: LookupResult) -> VendorFallback | None:
    """The handover by the duel of an exact record. There the library must have been faster by more than a tie, faster
    in all of the confidence interval, and right."""
    record = lookup.record
    if lookup.origin != "exact" or record is None or record.ratio_vendor is None:
        return None
    ratio, interval = record.ratio_vendor, record.ratio_interval
    if ratio * (1 + TIE) >= 1 or (interval is not None and interval[1] >= 1):
        return None
    wrong = record.accuracy is not None and record.accuracy.vendor is not None and not record.accuracy.vendor <= 1
    us = record.vendor_us or record.median_us * ratio
    why = f"the record of this product: {us:.4g} us for the {record.median_us:.4g} of ours"
    return None if wrong else VendorFallback(us, 1.0, why)


def by_timing(kernel: Kernel, lookup: LookupResult, operands: Operands) -> VendorFallback | None:
    """The handover by timing both: the library must be faster in all rounds but one, and by more than a tie. Raises one
    of FAILURES."""
    device, problem = kernel.device, kernel.problem
    twin = prepare(device, problem, kernel.config)  # its graphs hold memory, which is freed with it
    contenders = {"ours": twin.launch, "vendor": device.vendor(problem)}
    rounds = _ROUNDS if problem.flops < _LONG_FLOPS else _FEW_ROUNDS
    with device.on_stream(operands.stream):
        for launch in contenders.values():  # the library may have to load its kernel
            launch(*operands.abc, 1.0, 0.0)
        inputs = [operands.abc, *_copies(device, problem, operands)]
        timed = side_by_side(Timer(device, problem, plan=_PLAN, inputs=inputs), contenders, rounds)
    ratio, within = paired(timed.samples["vendor"], timed.samples["ours"])
    if ratio * (1 + TIE) >= 1 or within[1] >= 1:
        return None
    vendor_us, our_us = (statistics.median(timed.samples[name]) for name in ("vendor", "ours"))
    regret = None if lookup.regret is None else max(1.0, lookup.regret * ratio)
    return VendorFallback(
        vendor_us, regret, f"timing both at first use: {vendor_us:.4g} us for the {our_us:.4g} of ours"
    )


def _copies(device: Device, problem: Problem, operands: Operands) -> list[Inputs]:
    """Further sets of operands, aligned as these are; each matrix has one allocation for all sets, as in the timing of
    records. Empty where even `max_sets` sets would fit in the cache, where memory is short, or for views of much larger
    matrices."""
    count, size = _PLAN.cold_sets(device, problem) - 1, problem.dtype.size_bytes
    spread = sum(each.rows * each.ld for each in operands.abc) * size

    def copies(operand: Operand, filled: bool) -> list[Operand]:
        nbytes = operand.rows * operand.ld * size
        step = aligned_bytes(nbytes)
        stack = device.allocate(count * step + ALIGNED_BYTES)
        first = (operand.pointer - stack.pointer) % ALIGNED_BYTES
        copied = [replace(operand, pointer=stack.pointer + first + i * step, owner=stack) for i in range(count)]
        nbytes -= (operand.ld - operand.cols) * size  # memory after the last row may not be the caller's
        for each in copied if filled else ():
            device.copy(each.pointer, operand.pointer, nbytes, operands.stream)
        return copied

    if not 0 < count < _PLAN.max_sets or count * spread > _MOST_BYTES:
        return []
    a, b, c = operands.abc
    try:
        return list(zip(copies(a, True), copies(b, True), copies(c, False), strict=True))
    except LaunchError:
        return []


def _random(device: Device, problem: Problem) -> Operands:
    rng = np.random.default_rng(11)
    a, _ = place_all(device, problem, problem.stored_a, problem.trans_a, rng)
    b, _ = place_all(device, problem, problem.stored_b, problem.trans_b, rng)
    rows = problem.batch * problem.m
    c = device.allocate(rows * problem.n * problem.dtype.size_bytes)
    return Operands((a, b, Operand(c.pointer, rows, problem.n, problem.n, False, c)), device.stream())
