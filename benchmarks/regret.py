"""Offline regret: how much slower the choices of look-ups are than the best that was measured. Needs no GPU.

    python benchmarks/regret.py            some 10 s of a processor; ends with 1 where a figure is beyond its limit
    python benchmarks/regret.py --accept   make today's figures the limits

The regret of a choice is its measured time over the least measured time of the problem, by the data set in
`results/*/dataset`. Printed are the geometric mean, the 90th percentile and the worst for each type and device. Two
rankers are judged on the same ninth of the shapes, both with the code of the checkout:

- `held out` was fitted to the other shapes. Neither its trees nor its portfolio nor its corrections know anything of
  the ninth, whatever the transposes and the device, so that this is an estimate for shapes that nobody measured.
- `shipped` is `configs/ranker.json`. It was fitted to all shapes, so that its figures are too good; they show a change
  of that file.

A fit that leaves the shapes out takes CatBoost and 100 s of a processor for each type, after a minute of reading, and a
fit to fewer problems is no estimate of what ships. Therefore `fit_ranker.py` writes the first of the rankers that it
judges by into `results/held-out.json.xz`, with the shapes that were left out. A change of features, of the device
model, of which rows are ranked or of how configs are fitted to problems shows at once; a change of the fit shows when
`fit_ranker.py` has written the file anew. Rankers of other accuracies than `ieee` know too few problems for this.

Not every choice was measured. The `first choice` is judged where it was, for a third to two thirds of the problems. The
`first measured choice`, which nearly all problems have, passes over the variants that were not. The numbers of problems
have limits too: a look-up that prefers variants that nobody measured cannot be judged.
"""

import argparse
import itertools
import json
import lzma
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tilewright.codegen.config import Config
from tilewright.codegen.problem import DType, Grade
from tilewright.runtime.device.known import KNOWN
from tilewright.tuner.search.ranker import Ranker, name_of, shipped
from trials import Trials, choices, read

RESULTS = Path(__file__).parent / "results"
HELD_OUT = RESULTS / "held-out.json.xz"
"""A ranker for each type, as `configs/ranker.json` has it, and the shapes that were left out of its fit."""
LIMITS = RESULTS / "regret.json"
"""Figures by name; those of a run must not be worse."""
FIRST, FIRST_MEASURED = "first choice, where measured", "first measured choice"

Regrets = Sequence[float] | NDArray[np.float64]
Figures = dict[str, float]


def read_held_out() -> dict[str, Any]:
    """The held-out rankers by type."""
    rankers: dict[str, Any] = json.loads(lzma.decompress(HELD_OUT.read_bytes()))
    return rankers


def write_held_out(rankers: Mapping[str, Any]) -> None:
    """Write the held-out rankers."""
    HELD_OUT.write_bytes(lzma.compress(json.dumps(rankers).encode(), preset=9 | lzma.PRESET_EXTREME))


def regrets_of(ranked: Iterable[Config], slowdowns: Mapping[Config, float]) -> dict[str, float]:
    """The regret of the first config of a look-up, if it was measured, and of the first one that was; `slowdowns` are
    the times of the measured configs over the least."""
    for place, config in enumerate(ranked):
        if config in slowdowns:
            names = (FIRST_MEASURED,) if place else (FIRST, FIRST_MEASURED)
            return dict.fromkeys(names, slowdowns[config])
    return {}


def figures_of(regrets: Regrets) -> Figures:
    """The number of problems, geometric mean, 90th percentile and worst; the number alone if it is zero."""
    if not len(regrets):
        return {"problems": 0}
    figures = {"mean": math.exp(np.log(regrets).mean()), "p90": np.quantile(regrets, 0.9), "worst": max(regrets)}
    return {"problems": len(regrets), **{name: round(float(value), 3) for name, value in figures.items()}}


def line_of(name: str, regrets: Regrets) -> str:
    """The figures as a line of text."""
    if not len(regrets):
        return f"  {name}: none"
    f = figures_of(regrets)
    return f"  {name:<32} {f['problems']:>4} shapes: {f['mean']:.3f}, p90 {f['p90']:.3f}, worst {f['worst']:.3f}"


def judge(kind: str, trials: Sequence[Trials], ranker: Ranker) -> dict[str, Figures]:
    """Print and return the figures of a ranker by device and choice."""
    regrets: dict[str, dict[str, list[float]]] = {}
    for each in trials:
        times = {config: entry.time_us for config, entry in each.entries.items() if entry.time_us is not None}
        slowdowns = {config: us / min(times.values()) for config, us in times.items()}
        by_choice = regrets.setdefault(each.device_key, {FIRST: [], FIRST_MEASURED: []})
        ranked = choices(ranker, each.problem, KNOWN[each.device_key])
        for choice, regret in regrets_of(ranked, slowdowns).items():
            by_choice[choice].append(regret)
    figures: dict[str, Figures] = {}
    for key, by_choice in regrets.items():
        name = f"{kind}, {ranker.dtype.value} on {key}"
        print("\n".join([name, *itertools.starmap(line_of, by_choice.items())]), flush=True)
        figures |= {f"{name}: {choice}": figures_of(values) for choice, values in by_choice.items()}
    return figures


def beyond(figures: Mapping[str, Figures], limits: Mapping[str, Figures]) -> list[str]:
    """A line for each figure that is worse than its limit, and for what lacks a limit or a figure."""
    lines = []
    for name, limit in limits.items():
        for figure, value in figures.get(name, figures_of([])).items():
            if value < limit[figure] if figure == "problems" else value > limit[figure]:
                lines.append(f"{name}: {figure} {value}, the limit is {limit[figure]}")
    return lines + [f"{name} has no limit" for name in figures if name not in limits]


def main() -> None:
    """Print all figures and compare them with the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accept", action="store_true", help="write the figures as the limits")
    options = parser.parse_args()
    figures: dict[str, Figures] = {}
    for name, values in read_held_out().items():
        dtype, shapes = DType(name), frozenset(values["shapes"])
        files = sorted(RESULTS.glob(f"*/dataset/{name_of(dtype, Grade.IEEE)}.tar.xz"))
        trials = [each for file in files for each in read(file, shapes)]
        for kind, ranker in ("held out", values), ("shipped", shipped()[name]):
            figures |= judge(kind, trials, Ranker(ranker, dtype))
    if options.accept:
        LIMITS.write_text(json.dumps(figures, indent=1) + "\n")
        return
    worse = beyond(figures, json.loads(LIMITS.read_text()))
    if worse:
        sys.exit("\n".join(["beyond the limits:", *worse]))


if __name__ == "__main__":
    main()
