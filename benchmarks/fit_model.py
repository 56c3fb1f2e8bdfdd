"""Fit the factors of the policies in `tuner/search/policies/` to trials that tunings left in a store, without a GPU.

    python benchmarks/fit_model.py STORE...

Each trial is a time, and the model's estimate of it. What the logarithm of their ratio owes to each value of a few
parameters is found by ridge regression, shape by shape relative to its mean, fast variants counting more. Printed are
the factors, and how well the model ranks each shape with factors fitted to all the others.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import families
from tilewright.codegen.leaf import Value
from tilewright.runtime.device.known import KNOWN
from tilewright.tuner.recording.files import Recording
from tilewright.tuner.recording.journals import read_journal
from tilewright.tuner.search.candidates import FAMILY, config_of
from tilewright.tuner.search.model import estimate_us
from tilewright.tuner.search.policies import policy_of

DEVICE = KNOWN["nvidia-h200"]
LEAST = 30
"""Variants of a family that a shape needs to count."""
RIDGE = 30.0
WEIGHT = 100.0
"""All variants of a shape together."""
FALL = 3.0
"""A variant that takes e times the best counts exp(-3) of it."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """The variants of one family that were measured for one problem."""

    name: str
    configs: list[Config]
    model: Vector
    """Logarithms of the model's times, without factors."""
    measured: Vector
    """Logarithms of the measured ones."""

    @property
    def weights(self) -> Vector:
        """How much each variant counts."""
        weights: Vector = np.exp(-FALL * (self.measured - self.measured.min()))
        return weights * (WEIGHT / weights.sum())


def known(recording: Recording, family: str) -> Iterator[tuple[Config, float]]:
    """Config and time of each variant of a family that worked. Variants that this version does not have are left
    out, and their number is printed."""
    left_out = 0
    for point, entry in recording.entries.items():
        values = recording.values(point)
        if entry.time_us is not None and values[FAMILY] == family:
            try:
                yield config_of(values), entry.time_us
            except ConfigError:
                left_out += 1
    if left_out:
        print(f"{recording.problem}: {left_out} trials of variants that this version does not have are left out")


def shapes_of(store: Path, family: str) -> list[Shape]:
    """What a store knows about a family."""
    found = []
    for path in sorted((store / "trials").glob("*.jsonl")):
        recording = read_journal(path)
        problem, tried = recording.problem, list(known(recording, family))
        if problem is not None and len(tried) >= LEAST:
            configs = [config for config, _ in tried]
            model = [math.log(estimate_us(problem, config, DEVICE)) for config in configs]
            measured = [math.log(us) for _, us in tried]
            name = f"{problem.shape} {problem.dtype.value}"
            found.append(Shape(name, configs, np.array(model), np.array(measured)))
    return found


def fit(shapes: Sequence[Shape], family: str) -> dict[tuple[str, ...], dict[tuple[Value, ...], float]]:
    """Logarithms of factors by values, for each group of parameters."""
    groups = tuple(policy_of(family).factors)
    configs = [config for shape in shapes for config in shape.configs]
    keys = sorted({(g, values_of(config, names)) for config in configs for g, names in enumerate(groups)}, key=str)
    index = {key: place for place, key in enumerate(keys)}
    left, right = RIDGE * np.eye(len(keys)), np.zeros(len(keys))
    for shape in shapes:
        rows = np.zeros((len(shape.configs), len(keys)))
        for row, config in enumerate(shape.configs):
            for g, names in enumerate(groups):
                rows[row, index[g, values_of(config, names)]] = 1
        weights, ratio = shape.weights, shape.measured - shape.model
        rows -= np.average(rows, axis=0, weights=weights)
        ratio = ratio - np.average(ratio, weights=weights)
        left += (rows * weights[:, None]).T @ rows
        right += (rows * weights[:, None]).T @ ratio
    found = np.linalg.solve(left, right)
    return {
        names: {values: float(found[place]) for (group, values), place in index.items() if group == g}
        for g, names in enumerate(groups)
    }


def values_of(config: Config, names: tuple[str, ...]) -> tuple[Value, ...]:
    """The values of a group of parameters."""
    return tuple(config.leaf(name).plain(config.get(name)) for name in names)


def quality(shape: Shape, estimates: Vector) -> tuple[float, float, float]:
    """The rank correlation with what was measured, and the best of the first 16 and 48 over the best."""
    order = np.argsort(estimates, kind="stable")
    ranks, measured = np.argsort(order), np.argsort(np.argsort(shape.measured))
    best = shape.measured.min()
    firsts = (float(np.exp(shape.measured[order[:count]].min() - best)) for count in (16, 48))
    return (float(np.corrcoef(ranks, measured)[0, 1]), *firsts)


def main() -> None:
    """Print the factors and what they are worth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="+", type=Path, metavar="STORE")
    stores: list[Path] = parser.parse_args().stores
    for family in (name for name in families() if policy_of(name).factors):
        shapes = [shape for store in stores for shape in shapes_of(store, family)]
        print(f"{family}: {sum(len(shape.configs) for shape in shapes)} variants of {len(shapes)} shapes")
        before, after = [], []
        for shape in shapes:
            others = fit([other for other in shapes if other is not shape], family)
            added = [sum(by.get(values_of(c, names), 0.0) for names, by in others.items()) for c in shape.configs]
            before.append(quality(shape, shape.model))
            after.append(quality(shape, shape.model + np.array(added)))
            print(f"  {shape.name:24}", *(f"{old:.3f} -> {new:.3f}" for old, new in zip(before[-1], after[-1])))
        print("  mean", np.mean(before, axis=0).round(3), np.mean(after, axis=0).round(3))
        for names, by in fit(shapes, family).items():
            print(f"  {names}: {{{', '.join(f'{values}: {math.exp(log):.3f}' for values, log in by.items())}}}")


if __name__ == "__main__":
    main()
