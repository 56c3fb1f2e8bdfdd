"""Contest of one shape between the library's kernel and the vendor's libraries, in the process of the device."""

import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ...codegen.config import Config
from ...codegen.errors import CompileError, DeviceError, DeviceFaultError, LaunchError
from ...codegen.problem import Grade, Problem
from ...runtime.check.roofline import floor_us
from ...runtime.check.timing import Timer, TimingPlan, added_us
from ...runtime.check.verify import Verifier
from ...runtime.device.cublaslt import CublasLt
from ...runtime.device.protocol import Device, Launch
from ...runtime.product.gemm import load_on
from ...runtime.product.kernel import prepare
from ...runtime.store.record import Status
from ...runtime.store.store import Store
from ..choose.fallback import faster
from ..choose.shortlist import look_up
from ..measure.evaluate import FAILURES, one_line, status_of
from ..measure.ratios import median, paired, paired_if_timed
from ..measure.rounds import side_by_side
from .errors import broken_promise, error_kinds
from .rivals import meets, rival
from .rows import GIVEN, TITLES, BenchRow, KindError, Rival, finite

ROUNDS = 7
"""Least number of rounds."""
_OURS, _KERNEL, _THEN = "ours", "kernel", ", kernel"
"""Names of our contender and of the array library's kernel, and suffix of a contender that this kernel follows."""
_Samples = Mapping[str, list[float]]
_TRIES = 3
"""Number of batches by which one of cuBLASLt's kernels is chosen."""


def contest(
    device: Device,
    problem: Problem,
    rivals: tuple[str, ...],
    store: Path | None,
    seconds: float,
    turn_seconds: float = 0.0,
    config: Config | None = None,
    others: Sequence[Config] = (),
) -> BenchRow:
    """Check and time the stored config of a problem, or `config`, beside the `rivals` and `others`: further variants
    of ours, whose texts are their keys. A failure is a row, not an exception.

    The rounds on rotated inputs take `seconds`; checking, choosing and the other columns take further time. With
    `turn_seconds` each contender's turn lasts that long.
    """
    row = BenchRow(problem)
    with device.entered(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if config is None:
                gemm = load_on(device, problem, Store(store), look_up, faster=faster)
                row = replace(
                    row, config=str(gemm.config), origin=gemm.lookup.origin, taken_from=gemm.lookup.taken_from
                )
                row, launch = replace(row, handed_over=gemm.origin == "vendor"), gemm.kernel.launch
            else:
                row = replace(row, config=str(config), origin=GIVEN)
                launch = prepare(device, problem, config).launch
            row = _Contest(device, row, launch, others).run(rivals, seconds, turn_seconds)
        except FAILURES as error:
            row = replace(row, status=status_of(error), reason=one_line(error))
    # Warnings of other categories come from the array library and address its developers.
    notes = (one_line(warning.message) for warning in caught if issubclass(warning.category, UserWarning))
    return replace(row, notes=(*row.notes, *dict.fromkeys(notes)))


class _Contest:
    """Contenders on the inputs of one problem."""

    def __init__(self, device: Device, row: BenchRow, ours: Launch, others: Sequence[Config]) -> None:
        self.device, self.row, self.problem = device, row, row.problem
        self._others = {str(config): config for config in others if str(config) != row.config}
        self._contenders: dict[str, Launch] = {_OURS: ours}
        self._errors: dict[str, float] = {}
        self._notes: list[str] = []

    def run(self, rivals: tuple[str, ...], seconds: float, turn_seconds: float) -> BenchRow:
        """Check and time all contenders, and return the row. Raises the errors of checking and timing."""
        verifier = Verifier(self.device, self.problem, seed=101)
        reason = self._checked(verifier, _OURS, self._contenders[_OURS])
        if reason:
            worst = finite(self._errors[_OURS])
            return replace(self.row, status=Status.WRONG_RESULT, reason=reason, error_over_bound=worst)
        plan = TimingPlan.side_by_side(self.device)
        timer = Timer(self.device, self.problem, seed=103, plan=plan)
        for key in (*(key for key in rivals if meets(key, self.problem)), *self._others):
            with self._noted(f"{TITLES.get(key, key)} could not run"):
                self._enter(key, verifier, timer)
        del verifier  # its memory is not needed while the others are timed
        kinds: tuple[KindError, ...] = ()
        if self.problem.accuracy is not Grade.IEEE:
            with self._noted("errors on kinds of data"):  # there may be no memory for more operands
                kinds = error_kinds(self.device, self.problem, self._contenders)
        reason = broken_promise(self.problem, kinds, _OURS)
        if reason:
            return replace(self.row, status=Status.WRONG_RESULT, reason=reason, error_kinds=kinds)
        launches = dict(self._contenders)
        if plan.between and not turn_seconds:  # a turn of the short kernel would raise clocks for the next contender
            launches |= {name + _THEN: timer.followed(launch) for name, launch in self._contenders.items()}
            launches[_KERNEL] = timer.followed()
        rounds = side_by_side(timer, launches, ROUNDS, twice=_OURS, seconds=seconds, turn_seconds=turn_seconds)
        samples = rounds.samples
        held_back = timer.held_back()
        alone = samples.get(_KERNEL, [])
        between = {name: added_us(samples[name + _THEN], alone) if alone else [] for name in self._contenders}
        fixed = self._fixed(replace(plan, rotate_l2=0.0)) if timer.sets > 1 else {}
        eager = timer.eager(self._contenders)
        return replace(
            self.row,
            notes=tuple(self._notes),
            ours_us=statistics.median(samples[_OURS]),
            floor_us=floor_us(self.device.info, self.problem),
            error_over_bound=self._errors[_OURS],
            eager_us=statistics.median(eager[_OURS]),
            fixed_us=fixed.get(_OURS),
            between_us=median(between[_OURS]),
            between_kernel_us=median(alone),
            aa_interval=rounds.aa_interval,
            rounds=len(samples[_OURS]),
            clock_mhz=rounds.clock_mhz,
            held_back=held_back,
            rivals=tuple(self._rival(key, samples, eager, fixed, between) for key in self._contenders if key != _OURS),
            error_kinds=kinds,
        )

    @contextmanager
    def _noted(self, subject: str) -> Iterator[None]:
        """Turn a failure that leaves the device usable into a note of the row, which begins with `subject`."""
        try:
            yield
        except DeviceFaultError:
            raise
        except (LaunchError, DeviceError, CompileError) as error:
            self._notes.append(f"{subject}: {one_line(error)}")

    def _checked(self, verifier: Verifier, name: str, launch: Launch) -> str:
        """The reason that a contender's result is wrong; empty where it is right."""
        verdict = verifier.check(launch)
        self._errors[name] = verdict.accuracy.worst
        return verdict.reason

    def _enter(self, key: str, verifier: Verifier, timer: Timer) -> None:
        """Check a rival and add it to the contenders. The vendor's library is timed even where its result is wrong,
        with a note: it is what users get. Raises LaunchError for a wrong variant of ours."""
        if key in self._others:
            launch: Launch = prepare(self.device, self.problem, self._others[key]).launch
        else:
            launch = self._fastest(timer) if key == "cublaslt" else rival(self.device, self.problem, key)
        reason = self._checked(verifier, key, launch)
        if reason and key in self._others:
            raise LaunchError(reason)
        if reason:
            self._notes.append(f"{TITLES[key]}: {reason}")
        self._contenders[key] = launch

    def _fastest(self, timer: Timer) -> Launch:
        """The fastest kernel of cuBLASLt that works. Raises LaunchError where none does."""
        times: list[tuple[float, Launch]] = []
        last = "no heuristic serves this problem"
        for launch in CublasLt(self.device, self.problem).launches():
            try:
                timed = timer.ready(launch)
                times.append((min(timer.sample_us(timed) for _ in range(_TRIES)), launch))
            except DeviceFaultError:
                raise
            except LaunchError as error:
                last = str(error)
        if not times:
            raise LaunchError(last)
        return min(times, key=lambda pair: pair[0])[1]

    def _fixed(self, plan: TimingPlan) -> Mapping[str, float]:
        """Median microseconds of each contender on one set of inputs, which the cache may hold."""
        timer = Timer(self.device, self.problem, seed=107, plan=plan)
        samples = side_by_side(timer, self._contenders, ROUNDS).samples
        return {name: statistics.median(times) for name, times in samples.items()}

    def _rival(
        self, key: str, samples: _Samples, eager: _Samples, fixed: Mapping[str, float], between: _Samples
    ) -> Rival:
        ratio, interval = paired(samples[key], samples[_OURS])
        between_ratio, between_interval = paired_if_timed(between[key], between[_OURS])
        return Rival(
            key=key,
            us=statistics.median(samples[key]),
            ratio=ratio,
            interval=interval,
            error_over_bound=finite(self._errors[key]),
            eager_us=statistics.median(eager[key]),
            fixed_us=fixed.get(key),
            between_us=median(between[key]),
            between_ratio=between_ratio,
            between_interval=between_interval,
            eager_ratio=paired(eager[key], eager[_OURS])[0],
        )
