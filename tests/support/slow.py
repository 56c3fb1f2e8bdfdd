"""Lists of cases of which the first ones stand for all, the others being marked slow."""

from collections.abc import Sequence
from typing import Any

import pytest


def first_of(cases: Sequence[Any], count: int = 1) -> list[Any]:
    """Values or rows to parametrize a test with: all but the first ones run where tests marked slow do."""
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        *(pytest.param(*row) for row in rows[:count]),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in rows[count:]),
    ]
