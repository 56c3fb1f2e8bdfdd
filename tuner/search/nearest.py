"""What to run where nothing was tuned: the config of a near shape, or the one that was learned to be the fastest."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...codegen.arch import Arch
from ...codegen.config import Config
from ...codegen.leaf import Edge
from ...codegen.legality import serves
from ...codegen.problem import Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.found import Found
from ...runtime.store.record import Record
from .legal import may_hold
from .policies import policy_of
from .ranker import Predicted, ranker_of

_NEAR = 1.0
"""A record up to so many doublings of m, n and k away is taken before what was learned from others."""


def nearest(problem: Problem, info: DeviceInfo, records: Sequence[Record]) -> Found | None:
    """How to run a problem that was not tuned on a device: as for a near shape of the device, else, on a GPU, as the
    ranker predicts, else as for the nearest shape however far. None where no record helps. This is the ranking that
    `Store.lookup` takes."""
    key, kind = info.key, (problem.dtype, problem.trans_a, problem.trans_b)
    near = [
        record
        for record in records
        if record.device == key
        and (record.problem.dtype, record.problem.trans_a, record.problem.trans_b) == kind
        and record.problem.accuracy.keeps(problem.accuracy)
    ]
    # Of one shape's the record that was free to be as coarse as this product may be.
    away = [(distance(r.problem, problem), r.problem.accuracy != problem.accuracy) for r in near]
    near = [near[place] for place in sorted(range(len(near)), key=away.__getitem__)]
    if not (near and min(away)[0] <= _NEAR):
        for each in predictions(problem, info, 1):
            return Found(each.config, "predicted", expected_us=each.us, regret=each.regret)
    for record in near:
        # Another shape may want other vectors, and guarded edges.
        config = fitted(record.config, problem, info.arch, (record.config.edge, Edge.BOUNDS))
        if config is not None:
            return Found(config, "predicted", record)
    return None


def predictions(problem: Problem, info: DeviceInfo, count: int) -> list[Predicted]:
    """The configs that the ranker expects most of, as they serve a problem on a GPU, at most so many, best first; none
    where it knows nothing: for the processor, a product without work, or a type that it was not fitted to."""
    ranker = None if info.arch.is_host or min(problem.m, problem.n, problem.k) == 0 else ranker_of(problem.dtype)
    ranked = ranker.ranked(problem, info) if ranker else ()
    fits = ((fitted(each.config, problem, info.arch, (Edge.EXACT, Edge.BOUNDS)), each) for each in ranked)
    return list(itertools.islice((replace(each, config=config) for config, each in fits if config is not None), count))


def distance(tuned: Problem, problem: Problem) -> float:
    """How far apart two shapes are: doublings of m, of n and of k, added up."""
    # A dimension of zero counts as one half: one doubling away from 1.
    pairs = ((tuned.m, problem.m), (tuned.n, problem.n), (tuned.k, problem.k))
    return sum([abs(math.log2((one or 0.5) / (other or 0.5))) for one, other in pairs])


def fitted(config: Config, problem: Problem, arch: Arch, edges: tuple[Edge, ...]) -> Config | None:
    """The config as it serves a problem: with the first of `edges` and the widest vectors that do.

    The tiles stay. What it has for rows that are not aligned is reset where that is hopeless for the problem. None
    where it cannot serve the problem.
    """
    kind = type(config)
    policy = policy_of(kind.family)
    reset: dict[str, Any] = {}
    for name in policy.for_rows:
        if not may_hold(problem, arch, kind, policy.advice, {name: config.get(name)}):
            reset[name] = kind.leaf(name).default
    choices = [kind.leaf(name).choices for name in kind.vectors]
    widths = sorted(itertools.product(*choices), key=math.prod, reverse=True)
    for edge in dict.fromkeys(edges):
        base = config.changed(**{**reset, "edge": edge})
        if not serves(base.scalar(), problem, arch):
            continue  # nor with vectors
        for chosen in widths:
            fit = base.changed(**dict(zip(kind.vectors, chosen)))
            if serves(fit, problem, arch):
                return fit
    return None
