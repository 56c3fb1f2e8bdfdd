"""The winner of a duel, and the confidence in it."""

import math
from dataclasses import replace

import pytest
from stored import INFO
from tilewright.codegen.errors import DeviceError
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.runtime.check.timing import Timer, TimingPlan, summarise
from tilewright.runtime.check.verify import Verdict, Verifier
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.store.record import Accuracy, Status
from tilewright.tuner.measure import evaluate, ratios
from tilewright.tuner.measure.decide import NAIVE, aa_spread, decided, judge
from tilewright.tuner.measure.evaluate import Duel, Side
from tilewright.tuner.measure.ratios import interval
from variants import variant

FIRST, SECOND, THIRD = map(variant, ("naive:8x32", "tiled:16", "tiled:32"))
VENDOR = None


def duel(**times: list[float]) -> Duel:
    configs = {"first": FIRST, "second": SECOND, "third": THIRD, "vendor": VENDOR}
    accuracy = Accuracy(0.5, 0, 0)
    return tuple(Side(configs[key], summarise(samples), accuracy) for key, samples in times.items())


def with_between(contenders: Duel, *between_us: tuple[float, ...]) -> Duel:
    return tuple(replace(side, between_us=times_us) for side, times_us in zip(contenders, between_us, strict=True))


def test_the_fastest_wins_and_the_rest_is_sorted() -> None:
    contenders = judge(duel(first=[30.0] * 7, second=[10.0] * 7, third=[20.0] * 7, vendor=[15.0] * 7))
    assert [contender.config for contender in contenders] == [SECOND, VENDOR, THIRD, FIRST]
    assert contenders[0].ratio_vendor == 1.5


def test_a_contender_that_is_only_compared_cannot_win() -> None:
    times = {"first": [5.0] * 7, "second": [10.0] * 7, "vendor": [15.0] * 7}
    assert judge(duel(**times))[0].config == FIRST
    assert [contender.config for contender in judge(duel(**times), (FIRST,))] == [SECOND, FIRST, VENDOR]


def test_a_tie_goes_to_the_canonical_first_whichever_was_faster() -> None:
    assert SECOND.canonical < THIRD.canonical
    for lucky in (10.0, 10.07):
        contenders = judge(duel(third=[10.03] * 7, second=[lucky] * 7, vendor=[9.0] * 7))
        assert contenders[0].config == SECOND


def test_a_stored_config_stays_where_it_is_tied_with_the_fastest() -> None:
    tied = duel(second=[10.0] * 7, third=[10.04] * 7, vendor=[9.0] * 7)
    assert judge(tied, stored=[THIRD])[0].config == THIRD
    assert judge(tied, stored=[FIRST])[0].config == SECOND
    assert judge(duel(second=[10.0] * 7, third=[10.1] * 7, vendor=[9.0] * 7), stored=[THIRD])[0].config == SECOND
    assert judge(duel(third=[10.0] * 7, second=[10.0] * 7, vendor=[9.0] * 7), (THIRD,), [THIRD])[0].config == SECOND
    assert judge(tied, stored=[THIRD, SECOND])[0].config == THIRD  # the user's own before the shipped one
    assert [each.stored for each in judge(tied, stored=[THIRD])] == [True, False, False]


@pytest.mark.parametrize(("again", "has_ratio"), [(10.9, True), (11.2, False), (9.2, True), (9.0, False), (None, True)])
def test_a_contender_that_is_far_from_itself_leaves_no_ratio(again: float | None, has_ratio: bool) -> None:
    """The record has the winner and its times all the same."""
    sides = with_between(duel(second=[10.0] * 7, third=[12.0] * 7, vendor=[15.0] * 7), *[(1.0,) * 7] * 3)
    sides = tuple(replace(side, again_us=(again,) * 7) if again and side.config == SECOND else side for side in sides)
    assert aa_spread(sides) == (None if again is None else pytest.approx(max(again / 10, 10 / again) - 1))
    contenders = judge(sides)
    assert [contender.config for contender in contenders] == [SECOND, THIRD, VENDOR]
    for each in contenders:
        values = (each.ratio_vendor, each.interval, each.between_ratio, each.between_interval)
        assert [ratio is not None for ratio in values] == [has_ratio] * 4
    record = decided(Problem(64, 64, 64), INFO, contenders, ())
    assert (record.median_us, record.vendor_us) == (10.0, 15.0)
    assert (record.ratio_vendor, record.ratio_interval) == ((1.5, (1.5, 1.5)) if has_ratio else (None, None))


def test_more_than_a_tie_apart_the_canonical_order_does_not_count() -> None:
    assert judge(duel(second=[10.06] * 7, third=[10.0] * 7, vendor=[9.0] * 7))[0].config == THIRD


def test_ratios_are_paired_by_round() -> None:
    """A device that slows down for both contenders in some rounds does not blur the ratio."""
    factors = [1.0, 3.0, 1.0, 5.0, 2.0, 1.0, 4.0]
    contenders = judge(duel(second=[10 * factor for factor in factors], vendor=[20 * factor for factor in factors]))
    assert contenders[0].ratio_vendor == pytest.approx(2.0)
    assert contenders[0].interval == pytest.approx((2.0, 2.0))


def test_times_with_a_kernel_in_between_are_reported_and_decide_nothing() -> None:
    back_to_back = duel(second=[10.0] * 7, third=[12.0] * 7, vendor=[15.0] * 7)
    contenders = judge(with_between(back_to_back, (12.0,) * 7, (11.0,) * 7, (15.0,) * 7))
    assert [contender.config for contender in contenders] == [SECOND, THIRD, VENDOR]
    assert [contender.ratio_vendor for contender in contenders] == [1.5, 1.25, 1.0]
    assert [contender.between_us for contender in contenders] == [12.0, 11.0, 15.0]
    assert [contender.between_ratio for contender in contenders] == [1.25, 15 / 11, 1.0]
    assert contenders[0].between_interval == (1.25, 1.25)
    without = [(each.between_us, each.between_ratio, each.between_interval) for each in judge(back_to_back)]
    assert without == [(None, None, None)] * 3
    contenders = judge(with_between(back_to_back, (12.0,) * 7, (), (15.0,) * 7))  # one contender is far behind
    assert [contender.between_ratio for contender in contenders] == [1.25, None, 1.0]


@pytest.mark.parametrize(("count", "outermost"), [(1, 0), (5, 0), (7, 0), (9, 1), (11, 1), (15, 3), (20, 5)])
def test_interval_covers_the_median_with_95_percent(count: int, outermost: int) -> None:
    """The number of samples below the median has a binomial distribution."""
    assert interval([float(i) for i in range(count)]) == (outermost, count - 1 - outermost)
    # The median lies outside where at most `outermost` samples, counted from zero, fall on one side of it.
    outside, wider = (
        2 * sum(math.comb(count, below) for below in range(last + 1)) / 2**count for last in (outermost, outermost + 1)
    )
    assert outside <= 0.05 or outermost == 0
    assert wider > 0.05 or outermost + 1 > (count - 1) // 2


def test_the_record_has_the_measurements() -> None:
    problem = Problem(64, 64, 64)
    contenders = judge(duel(second=[10.0, 11.0, 12.0], vendor=[20.0, 22.0, 24.0]))
    record = decided(problem, INFO, contenders, (("generator", "1"),))
    assert record.status is Status.OK
    assert record.measurement is not None
    assert record.measurement.samples_us == (10.0, 11.0, 12.0)
    assert record.vendor_us == 22.0
    assert record.ratio_vendor == 2.0
    assert record.versions == (("generator", "1"),)
    assert record.digest == render(problem, SECOND, INFO).digest


def test_a_contender_that_is_far_behind_has_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratios, "NOISY", math.inf)
    monkeypatch.setattr(evaluate, "MUCH_SLOWER", 1.0)  # the slower one of two configs is far behind
    configs = NAIVE, variant("tiled")
    contenders = evaluate.Bench(HostDevice(), Problem.parse("64")).duel(configs, rounds=5)
    assert tuple(side.config for side in contenders) == (*configs, VENDOR)
    *ours, vendor = (len(side.measurement.samples_us) for side in contenders)
    assert (sorted(ours), vendor) == ([3, 5], 5)
    for each in judge(contenders):
        assert each.ratio_vendor is not None
        assert each.interval is not None
        assert each.interval[0] <= each.ratio_vendor <= each.interval[1]
    assert sorted(len(side.again_us) for side in contenders) == [0, 0, 5]  # the fastest, a second time
    (twice,) = (side for side in contenders if side.again_us)
    assert len(twice.measurement.samples_us) == 5
    assert twice.again_us != twice.measurement.samples_us
    assert [side.between_us for side in contenders] == [(), (), ()]  # the processor has no such rounds


def test_a_duel_has_further_rounds_with_a_kernel_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    device, configs = HostDevice(), (NAIVE, variant("tiled"))
    plan = replace(TimingPlan.of(device), between=True)
    monkeypatch.setattr(evaluate.TimingPlan, "of", lambda device: plan)
    monkeypatch.setattr(evaluate, "MUCH_SLOWER", math.inf)
    monkeypatch.setattr(ratios, "NOISY", math.inf)
    contenders = evaluate.Bench(device, Problem.parse("64")).duel(configs, rounds=3)
    assert [len(side.measurement.samples_us) for side in contenders] == [3, 3, 3]
    assert [len(side.between_us) for side in contenders[:2]] == [7, 7]
    best = judge(contenders)[0]
    assert best.between_us is not None
    assert best.between_us > 0


def test_without_the_vendors_library_there_is_a_winner_and_no_ratio() -> None:
    contenders = judge(with_between(duel(first=[30.0] * 7, second=[10.0] * 7), (31.0,) * 7, (11.0,) * 7))
    assert [contender.config for contender in contenders] == [SECOND, FIRST]
    assert [contender.between_us for contender in contenders] == [11.0, 31.0]
    for each in contenders:
        assert (each.ratio_vendor, each.interval, each.between_ratio, each.between_interval) == (None,) * 4
    record = decided(Problem(64, 64, 64), INFO, contenders, ())
    assert (record.config, record.median_us) == (SECOND, 10.0)
    assert (record.vendor_us, record.ratio_vendor, record.ratio_interval) == (None, None, None)


@pytest.mark.parametrize("brief", [False, True])
def test_a_library_that_is_missing_is_no_contender(brief: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: HostDevice, problem: Problem, *arguments: object) -> object:
        raise DeviceError("cuBLAS is missing")

    bench = evaluate.Bench(HostDevice(), Problem.parse("64"))
    assert VENDOR in {side.config for side in bench.duel((NAIVE,), 3, brief=brief)}
    monkeypatch.setattr(HostDevice, "vendor", missing)
    (ours,) = bench.duel((NAIVE,), 3, brief=brief)
    assert (ours.config, len(ours.measurement.samples_us), len(ours.again_us)) == (NAIVE, 3, 3)


def test_a_brief_duel_makes_no_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A brief duel makes and copies no operands, and has no rounds with another library's kernel in between."""
    device, configs = HostDevice(), (NAIVE, variant("tiled"))
    plan, created = replace(TimingPlan.of(device), between=True), list[object]()
    monkeypatch.setattr(evaluate.TimingPlan, "of", lambda device: plan)
    monkeypatch.setattr(evaluate, "MUCH_SLOWER", math.inf)
    bench = evaluate.Bench(device, Problem.parse("64"))
    for kind in (Timer, Verifier):
        monkeypatch.setattr(evaluate, kind.__name__, lambda *arguments, kind=kind, **options: created.append(kind))
    contenders = bench.duel(configs, rounds=3, brief=True)
    assert created == []
    assert [side.config for side in contenders] == [*configs, VENDOR]
    for side in contenders:
        assert len(side.measurement.samples_us) >= 3
        assert (side.between_us, side.measurement.end_to_end_us) == ((), None)
    assert sorted(len(side.again_us) > 0 for side in contenders) == [False, False, True]
    with pytest.raises(AttributeError):  # a duel that is not brief makes its own operands
        bench.duel(configs, rounds=3)
    assert created == [Verifier]


def test_a_library_that_is_wrong_is_no_rival_in_a_brief_duel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio of a record decides from then on whether the library serves."""
    bench, check = evaluate.Bench(HostDevice(), Problem.parse("64")), Verifier.check
    checked: list[object] = []

    def wrong(self: Verifier, launch: object) -> Verdict:
        checked.append(launch)
        return replace(check(self, launch), reason="" if len(checked) == 1 else "error 5 times its bound")  # type: ignore[arg-type]

    monkeypatch.setattr(Verifier, "check", wrong)
    assert [side.config for side in bench.duel((NAIVE,), 3, brief=True)] == [NAIVE]
    assert len(checked) == 2
