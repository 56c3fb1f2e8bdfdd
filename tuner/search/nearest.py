"""What to run where nothing was tuned: the config of a near shape, or the one that a model of the device prefers."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from ...codegen.arch import Arch
from ...codegen.config import Config
from ...codegen.leaf import Edge
from ...codegen.legality import serves
from ...codegen.problem import Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.record import Record
from ...runtime.store.store import Found
from .legal import may_hold
from .model import estimate_us
from .policies import policy_of


def nearest(problem: Problem, info: DeviceInfo, records: Sequence[Record]) -> Found | None:
    """How to run a problem that was not tuned on a device, out of all records there are: as for the nearest shape of
    the device, else, on a GPU, by the kernel of any record that a model of the device expects most of. None where no
    record helps. This is the ranking that `Store.lookup` takes."""
    near = [
        record
        for record in records
        if record.device == info.key
        and (record.problem.dtype, record.problem.trans) == (problem.dtype, problem.trans)
        and record.problem.accuracy.keeps(problem.accuracy)
    ]
    # Of one shape's the record that was free to be as coarse as this product may be.
    for record in sorted(near, key=lambda r: (distance(r.problem, problem), r.problem.accuracy != problem.accuracy)):
        # Another shape may want other vectors, and guarded edges.
        config = fitted(record.config, problem, info.arch, (record.config.edge, Edge.BOUNDS))
        if config is not None:
            return Found(config, f"nearest {record.problem.shape}", record)
    if info.arch.is_host or min(problem.m, problem.n, problem.k) == 0:
        return None  # the model knows nothing of processors
    found = fits(problem, info, records)
    best = min(found, key=lambda config: estimate_us(problem, config, info), default=None)
    return None if best is None else Found(best, f"estimated, from {found[best].problem.shape}")


def fits(problem: Problem, info: DeviceInfo, records: Sequence[Record]) -> dict[Config, Record]:
    """The configs of all records of the type as they serve a problem, each with the first record that has it; of
    records of another type where those of this one need what the device lacks."""
    for alike in (True, False):
        found: dict[Config, Record] = {}
        for record in records:
            if (record.problem.dtype is problem.dtype) is alike:
                elsewhere = record.device != info.key
                config = fitted(record.config, problem, info.arch, (Edge.EXACT, Edge.BOUNDS), elsewhere)
                if config is not None:
                    found.setdefault(config, record)
        if found:
            break
    return found


def distance(tuned: Problem, problem: Problem) -> float:
    """How far apart two shapes are: doublings of m, of n and of k, added up."""
    # A dimension of zero counts as one half: one doubling away from 1.
    pairs = ((tuned.m, problem.m), (tuned.n, problem.n), (tuned.k, problem.k))
    return sum(abs(math.log2(max(one, 0.5)) - math.log2(max(other, 0.5))) for one, other in pairs)


def fitted(
    config: Config, problem: Problem, arch: Arch, edges: tuple[Edge, ...], elsewhere: bool = False
) -> Config | None:
    """The config as it serves a problem: with the first of `edges` and the widest vectors that do.

    The tiles stay. Of a config from `elsewhere`, another device, what this one lacks is replaced. What it has for rows
    that are not aligned is reset where that is hopeless for the problem. None where it cannot serve the problem.
    """
    kind = type(config)
    policy = policy_of(kind.family)
    reset: dict[str, Any] = {}
    for name in policy.for_rows:
        if not may_hold(problem, arch, kind, policy.advice, {name: config.get(name)}):
            reset[name] = kind.leaf(name).default
    choices = [kind.leaf(name).choices for name in kind.vectors]
    widths = sorted(itertools.product(*choices), key=math.prod, reverse=True)
    for other in ({}, *(policy.instead if elsewhere else ())):
        if other and not serves(config.changed(**{**reset, **other, "edge": edges[-1]}).scalar(), problem, arch):
            continue  # nor with vectors
        for edge, chosen in itertools.product(dict.fromkeys(edges), widths):
            fit = config.changed(**{**reset, **other, "edge": edge}, **dict(zip(kind.vectors, chosen)))
            if serves(fit, problem, arch):
                return fit
    return None
