"""Fixtures that the tests of the command line share."""

import pytest
from commands import Run, caller


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call `tilewright` with arguments, in this process."""
    return caller(capsys)
