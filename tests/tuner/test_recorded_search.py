"""A search of a recorded space needs no more evaluations than the committed figures say."""

import json
from typing import Any

import pytest
import recorded_search
from recorded_search import FIGURES, FIRST_GUESSES, METHODS

SLACK = 1.05
"""Factor by which a figure may exceed the committed one. The same seed gives the same run, but a BLAS that rounds
differently may lead a few runs elsewhere."""
COMMITTED: dict[str, Any] = json.loads(FIGURES.read_text())
QUICK = (FIRST_GUESSES, "gp")
"""The methods that take seconds; the others are marked slow."""


@pytest.mark.parametrize(
    "method", [pytest.param(each, marks=[] if each in QUICK else [pytest.mark.slow]) for each in METHODS]
)
@pytest.mark.parametrize("name", recorded_search.NAMES)
def test_a_search_needs_no_more_evaluations_than_before(name: str, method: str) -> None:
    limits, measured = COMMITTED["figures"][name][method], recorded_search.figures(name, method)
    worse = [
        f"{figure} {target}: {measured[target][figure]:.1f}, committed {limit:.1f}"
        for target, figures in limits.items()
        for figure, limit in figures.items()
        if measured[target][figure] > SLACK * limit
    ]
    versions = f"with {recorded_search.versions()}, committed with {COMMITTED['versions']}"
    remedy = "if it is meant, write them again: python tests/support/recorded_search.py"
    assert not worse, f"{name}, {method}: {'; '.join(worse)}; {versions}; {remedy}"
