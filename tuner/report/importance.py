"""Importance of parameters by Optuna's evaluators. Optuna is slow to import, so this module is imported late."""

import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from ...codegen.config import Config
from ...codegen.leaf import Value

FEWEST = 20
"""Least number of a family's variants for which there are importances."""
_MOST_FANOVA = 600
"""Most variants, evenly spaced, that fANOVA reads: its forest is slow."""


@dataclass(frozen=True, slots=True)
class Importance:
    """Importance of one parameter of a family."""

    name: str
    meaning: str
    pedanova: float
    """Share of the parameters' importance for being among the fastest tenth, by PED-ANOVA."""
    fanova: float | None
    """Share of the variance of log time that the parameter explains alone, by fANOVA; None without scikit-learn."""
    best_us: tuple[tuple[Value, float], ...]
    """Each value that was tried and its least microseconds, the fastest first."""


def importances(times: Sequence[tuple[Config, float]]) -> tuple[Importance, ...]:
    """Importances of the parameters that vary among configs of one family, the most important first; `times` has the
    configs and their microseconds. Empty where there are fewer than FEWEST."""
    rows = [(dict(config.values), us) for config, us in times]
    names = [name for name in (rows[0][0] if rows else ()) if len({values[name] for values, _ in rows}) > 1]
    if len(rows) < FEWEST or not names:
        return ()
    kind = type(times[0][0])
    choices = {name: _sorted({values[name] for values, _ in rows}) for name in names}
    by_pedanova = _evaluated(PedAnovaImportanceEvaluator(), rows, choices)
    by_fanova: Mapping[str, float] = {}
    with contextlib.suppress(ImportError):  # scikit-learn is no dependency
        by_fanova = _evaluated(FanovaImportanceEvaluator(seed=0), rows[:: -(-len(rows) // _MOST_FANOVA)], choices)
    entries = []
    for name in names:
        best: dict[Value, float] = {}
        for values, us in rows:
            best[values[name]] = min(us, best.get(values[name], math.inf))
        ranked = tuple(sorted(best.items(), key=lambda each: each[1]))
        meaning = kind.leaf(name).meaning
        entries.append(Importance(name, meaning, by_pedanova.get(name, 0.0), by_fanova.get(name), ranked))
    return tuple(sorted(entries, key=lambda each: -each.pedanova))


def _sorted(values: set[Value]) -> list[Value]:
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def _evaluated(
    evaluator: optuna.importance.BaseImportanceEvaluator,
    rows: Sequence[tuple[Mapping[str, Value], float]],
    choices: Mapping[str, list[Value]],
) -> dict[str, float]:
    """The share of each parameter; the evaluated study has the position of each value among the parameter's choices."""
    kinds: dict[str, BaseDistribution] = {}
    for name, values in choices.items():
        numbers = all(isinstance(value, int) for value in values)
        kinds[name] = IntDistribution(0, len(values) - 1) if numbers else CategoricalDistribution(range(len(values)))
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study()
        study.add_trials(
            create_trial(
                params={name: values.index(row[name]) for name, values in choices.items()},
                distributions=kinds,
                value=math.log(us),
            )
            for row, us in rows
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return get_param_importances(study, evaluator=evaluator)
    finally:
        optuna.logging.set_verbosity(verbosity)
