"""The weight of the checkout stays within a budget (support/weight.py)."""

import pytest
from weight import ROOT, code_lines, megabytes, tracked

MEGABYTES, FILES = 10.0, 600
"""Budget of the files that git tracks. A change that makes the checkout lighter lowers it."""


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="nothing is tracked outside a git checkout")
def test_the_checkout_stays_within_its_budget() -> None:
    files = tracked()
    for name, amount, budget in (("megabytes", megabytes(files), MEGABYTES), ("files", len(files), FILES)):
        text = f"{amount:.4g} {name} are tracked, the budget is {budget}"
        assert amount <= budget, f"{text}; `python tests/support/weight.py` shows where they are"
        assert amount >= 0.9 * budget, f"{text}: lower it"


def test_lines_of_code_are_neither_blank_nor_comments_nor_docstrings() -> None:
    text = '"""One\n\ntwo."""\n\n# three\nx = """four\nfive"""  # and more\n"""Six."""\ndef f(\n    a,\n): return a\n'
    assert code_lines(text) == 5
