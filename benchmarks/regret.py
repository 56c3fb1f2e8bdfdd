"""Offline regret: how much slower the choices of look-ups are than the fastest measured kernels. Needs no GPU.

    python benchmarks/regret.py            takes some 10 s; the exit status is 1 where a figure is beyond its limit
    python benchmarks/regret.py --accept   makes today's figures the limits, and writes the page of the shipped rankers

The regret of a choice is its measured time over the least measured time of the problem, by the data set in
`results/*/dataset`. The script prints the geometric mean, the 90th percentile and the worst for each type and device.
It judges two rankers on the same ninth of the shapes, both with the code of the checkout:

- `held out` was fitted to the other shapes. Its trees, its portfolio and its corrections are made without the ninth, of
  whatever transposes and device: its figures are an estimate for shapes that nobody measured.
- `shipped` is the ranker of `configs/ranker`. It was fitted to all shapes, so that its figures are too good. They show
  a change of these files.

A fit takes CatBoost and 100 s of a processor for each type. So `fit_ranker.py` writes the ranker `held out` into
`results/held-out`, with the shapes that were left out, and accepts the figures at its end. A change of features, of the
device model, of the ranked rows or of how configs are fitted to problems shows at once. A change of the fit shows after
`fit_ranker.py` has written the files again. --accept is for a change of code that leaves the files as they are. Rankers
of other accuracies than `ieee` are not judged, as few problems were measured for them.

The ranker of batches, `configs/ranker/batches.npz`, ships as it was fitted without every sixth shape, and is judged on
these.

Not every choice was measured. The `first choice` is judged where it was: for a third to two thirds of the problems. The
`first measured choice` is the first that was measured, and nearly all problems have one. The numbers of problems have
limits too, as a look-up that prefers unmeasured variants cannot be judged.
"""

import argparse
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tilewright.codegen.config import Config
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.device.known import KNOWN
from tilewright.tuner.choose.batches import BATCHES, BatchRanker, of_type
from tilewright.tuner.choose.ranker import Arrays, Ranker, name_of, shipped
from trials import SUFFIX, Trials, choices, read

RANKERS = Path(__file__).parent.parent / "configs" / "ranker"
"""Folder of the shipped rankers, arrays for each type and accuracy, and of PAGE."""
PAGE = "README.md"
RESULTS = Path(__file__).parent / "results"
HELD_OUT = RESULTS / "held-out"
"""Folder of a ranker for each type, with the shapes that were left out of its fit."""
LIMITS = RESULTS / "regret.json"
"""File of the worst accepted figures by name."""
BATCHED = f"{BATCHES}.npz"
"""File of the ranker of batches, which names the shapes that were left out of its fit."""
FIRST, FIRST_MEASURED = "first choice, where measured", "first measured choice"

Regrets = Sequence[float] | NDArray[np.float64]
Figures = dict[str, float]


def regrets_of(ranked: Iterable[Config], slowdowns: Mapping[Config, float]) -> dict[str, float]:
    """The regret of the first config of a look-up, if it was measured, and of the first measured one. `slowdowns` are
    the times of the measured configs over the least time."""
    for place, config in enumerate(ranked):
        if config in slowdowns:
            names = (FIRST_MEASURED,) if place else (FIRST, FIRST_MEASURED)
            return dict.fromkeys(names, slowdowns[config])
    return {}


def figures_of(regrets: Regrets) -> Figures:
    """The number of problems, and their geometric mean, 90th percentile and worst regret, if there is any problem."""
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


def of_batches(arrays: Arrays, trials: Sequence[Trials]) -> dict[str, list[float]]:
    """The regrets of a ranker of batches by type, device and choice."""
    regrets: dict[str, list[float]] = {}
    for each in trials:
        problem, info, times = each.problem, KNOWN[each.device_key], each.times
        ranker = batch_ranker(arrays, problem)
        slowdowns = {config: us / min(times.values()) for config, us in times.items()}
        for choice, regret in regrets_of(choices(ranker, problem, info), slowdowns).items():
            regrets.setdefault(f"{problem.dtype.value} on {each.device_key}: {choice}", []).append(regret)
    return regrets


def batch_ranker(arrays: Arrays, problem: Problem) -> BatchRanker:
    """The ranker for a batch by arrays of both types; without arrays no time is corrected."""
    singles = shipped(name_of(problem.dtype, problem.accuracy))
    return BatchRanker(singles, of_type(arrays, problem.dtype), problem.dtype)


def judge(kind: str, trials: Sequence[Trials], ranker: Ranker) -> dict[str, Figures]:
    """Print and return the figures of a ranker by device and choice."""
    regrets: dict[str, dict[str, list[float]]] = {}
    for each in trials:
        times = each.times
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


def judge_batches(arrays: Arrays) -> dict[str, Figures]:
    """Print and return the figures of the ranker of batches for the shapes that were left out of its fit."""
    shapes = frozenset(arrays["left_out"].tolist())
    trials = [each for file in sorted(RESULTS.glob(f"*/dataset/{BATCHES}{SUFFIX}")) for each in read(file, shapes)]
    regrets = {f"left out, batches, {name}": values for name, values in of_batches(arrays, trials).items()}
    print("\n".join(itertools.starmap(line_of, regrets.items())), flush=True)
    return {name: figures_of(values) for name, values in regrets.items()}


def beyond(figures: Mapping[str, Figures], limits: Mapping[str, Figures]) -> list[str]:
    """A line for each figure that is worse than its limit or has none, and for each limit without a figure."""
    lines = []
    for name, limit in limits.items():
        for figure, value in figures.get(name, figures_of([])).items():
            if value < limit[figure] if figure == "problems" else value > limit[figure]:
                lines.append(f"{name}: {figure} {value}, the limit is {limit[figure]}")
    return lines + [f"{name} has no limit" for name in figures if name not in limits]


def figures() -> dict[str, Figures]:
    """Print and return all figures by name."""
    every: dict[str, Figures] = {}
    for path in sorted(HELD_OUT.glob("*.npz"), reverse=True):
        dtype, held_out = DType(path.stem), dict(np.load(path))
        shapes = frozenset(held_out["shapes"].tolist())
        files = sorted(RESULTS.glob(f"*/dataset/{path.stem}{SUFFIX}"))
        trials = [each for file in files for each in read(file, shapes)]
        for kind, arrays in ("held out", held_out), ("shipped", dict(np.load(RANKERS / path.name))):
            every |= judge(kind, trials, Ranker(arrays, dtype))
    if (RANKERS / BATCHED).exists():
        every |= judge_batches(dict(np.load(RANKERS / BATCHED)))
    return every


def page(by_name: Mapping[str, Figures]) -> str:
    """The page for reviewers that says what the shipped rankers learned, from which data, and how well."""
    lines = [
        "# What is run where nobody tuned",
        "",
        "Each type and accuracy has a ranker: kernels to choose from, and boosted trees that say which of them is the",
        "fastest for a product ([how](../../docs/experiments/untuned.md)). Its file holds NumPy arrays: the text of",
        "`kernels`, the `decompositions` of the work that pay for each, `corrections` of the device's model, and the",
        "questions, borders and leaves of the trees for the `ranking` and for the `level` of time.",
        "`tuner/choose/ranker.py` reads them. One command, which needs CatBoost, fits all rankers to the data set,",
        "judges them, makes their figures the limits of `benchmarks/regret.py`, and writes this page:",
        "",
        "    python benchmarks/fit_ranker.py benchmarks/results/*/dataset",
        "",
        "| ranker | kernels | of the families | trees | asked most often |",
        "| --- | ---: | --- | ---: | --- |",
    ]
    rankers = {path.stem: dict(np.load(path)) for path in sorted(RANKERS.glob("*.npz"))}
    of_many = rankers.pop(BATCHES, {})
    lines += [f"| `{name}` | {' | '.join(_learned(arrays))} |" for name, arrays in rankers.items()]
    if of_many:
        lines += ["", *_learned_of_batches(of_many)]
        rankers[BATCHES] = {**of_many, "devices": np.array([]), "regrets": np.array([])}
    lines += ["", "## From what", ""]
    lines += [f"- `{name}`, {line}" for name, arrays in rankers.items() for line in arrays["data"].tolist()]
    lines += [
        "",
        "## How well",
        "",
        "The figures are 90th percentiles of the measured time of the first choice over the least measured time, which",
        "look-ups report as `regret`. All shapes are judged in nine parts, each by a fit to the other eight, and",
        "shapes of batches in six.",
        "",
    ]
    for dtype in DType if of_many else ():
        rankers[f"{BATCHES}, {dtype.value}"] = of_type(of_many, dtype)
    regrets = ((name, *each) for name, a in rankers.items() for each in zip(a["devices"], a["regrets"]))
    lines += [f"- `{name}` on {key}: {regret:.3f}" for name, key, regret in regrets]
    lines += [
        "",
        "These figures are by the code of the checkout, for one part of the shapes. A ranker that is `held out` was",
        "fitted without them, a shipped one with them ([regret.py](../../benchmarks/regret.py)).",
        "",
        "| ranker and choice | problems | mean | p90 | worst |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [f"| {name} | {' | '.join(map(str, figures.values()))} |" for name, figures in by_name.items()]
    return "\n".join(lines) + "\n"


def _learned_of_batches(arrays: Arrays) -> Iterator[str]:
    """Lines of the page on the ranker of batches."""
    features = Counter(arrays["features"][arrays["batches_asked"]].ravel().tolist())
    most = ", ".join(feature for feature, _ in features.most_common(6))
    more = " and ".join(f"{len(arrays[f'{each.value} kernels'])} in {each.value}" for each in DType)
    yield f"`{BATCHED}` corrects the times of batches that the rankers of single products, and a model of the family"
    yield f"`small`, expect: {len(arrays['batches_leaves'])} trees for both types, which ask most often {most}."
    yield f"It has more kernels, {more}. Every sixth shape is left out of the fit. Its data alone fit it again:"
    yield ""
    yield "    python benchmarks/fit_ranker.py benchmarks/results/*/dataset/batches.jsonl.xz"


def _learned(arrays: Arrays) -> Iterator[str]:
    """Number of kernels of a ranker, their families, number of trees, and the features that trees ask most often."""
    families = Counter(text.partition(":")[0] for text in arrays["kernels"].tolist())
    features = Counter(arrays["features"][arrays["ranking_asked"]].ravel().tolist())
    yield str(len(arrays["kernels"]))
    yield ", ".join(f"{family} {count}" for family, count in families.most_common())
    yield str(len(arrays["ranking_leaves"]))
    yield ", ".join(feature for feature, _ in features.most_common(6))


def accept() -> None:
    """Print all figures, make them the limits, and write the page of the shipped rankers."""
    by_name = figures()
    LIMITS.write_text(json.dumps(by_name, indent=1) + "\n")
    (RANKERS / PAGE).write_text(page(by_name))


def main() -> None:
    """Print all figures and compare them with the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accept", action="store_true", help="write the figures as the limits, and the ranker's page")
    options = parser.parse_args()
    if options.accept:
        accept()
        return
    worse = beyond(figures(), json.loads(LIMITS.read_text()))
    if worse:
        sys.exit("\n".join(["beyond the limits:", *worse]))


if __name__ == "__main__":
    main()
