"""Listing the legal configs of a space gives the same as checking each combination."""

import math
import random
from itertools import product
from typing import Any

import pytest
from quick import TYPICAL
from tilewright.codegen.families import families, parse
from tilewright.codegen.legality import Rule, rules_of
from tilewright.codegen.listing import legal_changes, legal_configs, open_rules
from tilewright.codegen.problem import Problem
from variants import proposed

pytestmark = pytest.mark.fast

TARGET = TYPICAL["sm_90a"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("text", "shape", "dtype"), [
    ("naive:8x32", "300x200x100", "float"), ("tiled:16", "256", "double"),
    ("simt:64x128x16,slices=2,slice_barriers,interleave=2", "1024", "float"),
    ("simt:32x64x64,lanes_m=4,slices=8,split_k=64", "64x64x65536", "float"),
    ("dmma:64x128x16,warp=32x32,stages=4", "1000", "double"),
    ("skinny:1x4x4,lanes_k=4,warps=1x8,load=cp_async,stages=4,resident_k=4096", "1x4096x4096", "float"),
])  # fmt: skip
def test_listed_configs_are_those_that_break_no_rule(text: str, shape: str, dtype: str, seed: int) -> None:
    base, problem = parse(text), Problem.parse(shape, dtype)
    kind, rng = type(base), random.Random(seed)
    values = {leaf.name: [base.get(leaf.name)] for leaf in kind.leaves()}
    for leaf in rng.sample(kind.leaves(), min(9, len(kind.leaves()))):
        values[leaf.name] += rng.sample([each for each in proposed(leaf) if each != values[leaf.name][0]], 1)
    rules = rules_of(kind)
    combinations = (kind.build(dict(zip(values, chosen))) for chosen in product(*values.values()))
    legal = {config for config in combinations if all(rule.holds(problem, config, TARGET) for rule in rules)}
    listed = legal_configs(problem, TARGET, kind, values, 10**6)
    assert listed is not None
    configs, pruned = listed
    assert len(configs) == len(legal)
    assert set(configs) == legal
    assert sum(pruned.values()) + len(configs) == math.prod(map(len, values.values()))


def listed(rule: Rule[Any], monkeypatch: pytest.MonkeyPatch, **values: Any) -> tuple[list[Any], dict[str, int]]:
    """The configs of the tiled family that keep one more rule, and the number of combinations that break each rule."""
    kind = families()["tiled"]
    monkeypatch.setattr(kind, "rules", (*kind.rules, rule))
    result = legal_configs(Problem.parse("256"), TARGET, kind, values, 1000)
    assert result is not None
    return result


def test_a_rule_may_read_more_values_depending_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule reads the last value and, depending on it, the first value too."""
    values = {"tile_width": (8, 16, 32), "skew": (0, 1), "unroll": (1, 2)}
    whole = legal_configs(Problem.parse("256"), TARGET, families()["tiled"], values, 1000)
    assert whole is not None
    rule = Rule("{c.tile.unroll} is 1 or the tile 8", lambda p, c, a: c.tile.unroll == 1 or c.tile.tile_width == 8)
    configs, pruned = listed(rule, monkeypatch, **values)
    assert configs == [c for c in whole[0] if c.get("unroll") == 1 or c.get("tile_width") == 8]
    assert pruned == {rule.title: len(whole[0]) - len(configs)} != {rule.title: 0}


def test_a_rule_that_reads_no_value_and_never_holds_leaves_no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    configs, pruned = listed(Rule("never", lambda p, c, a: False), monkeypatch, tile_width=(8, 16))
    assert (configs, pruned["never"]) == ([], 2)


def test_a_space_with_more_configs_than_are_listed_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, values = families()["tiled"], {"tile_width": (8, 16, 32), "unroll": (1, 2)}
    assert legal_configs(Problem.parse("256"), TARGET, kind, values, 5) is None
    result = legal_configs(Problem.parse("256"), TARGET, kind, values, 6)
    assert result is not None
    assert len(result[0]) == 6
    monkeypatch.setattr("tilewright.codegen.listing.MOST_COMBINATIONS", 5)
    assert legal_configs(Problem.parse("256"), TARGET, kind, values, 6) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("text", "names"), [
    ("simt:64x128x16,slices=2", ("mode", "parts", "reduce")), ("simt:256x128x16,k_inner_b", ("stages", "interleave")),
    ("dmma:64x128x16,warp=32x32,stages=4", ("mode", "parts", "reduce")), ("tiled:16", ("skew", "edge")),
    ("skinny:short=n,1x2x8,lanes_k=32,resident_k=1024", ("mode", "parts", "reduce")),
])  # fmt: skip
def test_remaining_changes_break_no_rule(text: str, names: tuple[str, ...], seed: int) -> None:
    base, rng = parse(text), random.Random(seed)
    kind = type(base)
    problem = Problem.parse("x".join(rng.choices(("256", "1000", "4096", "65536"), k=3)), ("float", "double")[seed % 2])
    combinations = [dict(zip(names, chosen)) for chosen in product(*(proposed(kind.leaf(name)) for name in names))]
    changes, rules = rng.sample(combinations, min(60, len(combinations))), rules_of(kind)
    rules = tuple(rng.sample(rules, len(rules)))
    legal = [c for c in changes if all(rule.holds(problem, base.changed(**c), TARGET) for rule in rules)]
    assert list(legal_changes(rules, problem, base, TARGET, changes)) == legal
    maybe, others = open_rules(rules, problem, kind, TARGET, changes)
    assert len(others) < len(rules) or "mode" not in names
    assert not maybe or list(legal_changes(others, problem, base, TARGET, maybe)) == legal
