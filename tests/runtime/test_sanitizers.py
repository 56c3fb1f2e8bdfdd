"""compute-sanitizer over 30 variants of each tensor-core family, on a GPU."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tilewright.codegen.families import families, family_named

WATCHED = Path(__file__).parents[1] / "support" / "watched.py"
COUNT = 30


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
@pytest.mark.parametrize("family", [name for name in families() if family_named(name).tensor_cores])
def test_nothing_is_found_in_variants_drawn_from_the_space(family: str, tool: str) -> None:
    program = sys.executable, "-P", str(WATCHED), family, str(COUNT)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    sanitizer = "compute-sanitizer", "--tool", tool, "--error-exitcode", "99"
    for command in (program, (*sanitizer, *program)):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{COUNT} variants of {family}, 0 wrong" in done.stdout
    assert re.search(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards", done.stdout), done.stdout
