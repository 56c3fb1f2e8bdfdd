"""Function calls that an action takes, counted by the interpreter: a cost that does not depend on the machine."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(run: Callable[[], object], *others: str) -> tuple[list[str], list[str]]:
    """Names of the Python functions and of the C functions that `run` calls, in order.

    A call counts where the caller or the function belongs to tilewright or to one of the modules `others`. Calls
    inside other libraries do not count.
    """
    python, c, counted = list[str](), list[str](), {"tilewright", *others}

    def counts(frame: FrameType | None) -> bool:
        return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in counted

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event == "call" and (counts(frame) or counts(frame.f_back)):
            python.append(frame.f_code.co_qualname)
        elif event == "c_call" and counts(frame):
            c.append(function.__qualname__)

    collecting = gc.isenabled()
    gc.disable()  # finalizers of other tests' objects would count
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        if collecting:
            gc.enable()
    return python, c


def check_calls(run: Callable[[], object], expected: tuple[int, int], *others: str) -> None:
    """Fail unless a warm `run` takes as many calls of Python functions and of C functions as expected."""
    for _ in range(2):
        run()
    python, c = calls(run, *others)
    text = f"expected {expected} (fewer is better: then lower the expectation); Python calls are {' '.join(python)}; "
    assert (len(python), len(c)) == expected, f"{len(python), len(c)} calls, {text}C calls are {' '.join(c)}"
