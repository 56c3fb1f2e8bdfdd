"""Compile variants with NVRTC, in a process of its own as NVRTC holds a lock: JSON rows in, JSON rows out."""

import json
import re
import sys

from cupy.cuda import nvrtc
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render


def compile_variant(text: str, dtype: str, trans: str, target: str) -> tuple[int, int, int]:
    """Registers of a thread, static shared bytes and spilled bytes, as the compiler says."""
    source = render(Problem.parse("1024", dtype, trans), Config.parse(text), ARCHES[target])
    program = nvrtc.createProgram(source.code, f"{source.name}.cu", (), ())
    nvrtc.compileProgram(program, (f"-arch={target}", "-std=c++17", "--ptxas-options=-v"))
    log = nvrtc.getProgramLog(program)
    nvrtc.destroyProgram(program)
    (said,) = re.findall(rf"entry function '{source.name}' for(.*?)Compile time", log, re.DOTALL)
    (registers,) = re.findall(r"Used (\d+) registers", said)
    smem = re.findall(r"(\d+) bytes smem", said) or [0]
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", said)
    return int(registers), int(smem[0]), sum(map(int, spilled))


if __name__ == "__main__":
    json.dump([compile_variant(*row) for row in json.load(sys.stdin)], sys.stdout)
