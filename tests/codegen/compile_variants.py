"""Compile variants with NVRTC, in a process of its own as NVRTC holds a lock: JSON rows in, JSON rows out."""

import json
import sys
import tempfile

from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.runtime.device.cuda import NvrtcCompiler


def compile_variant(text: str, dtype: str, trans: str, target: str) -> tuple[int, int, int]:
    """Registers of a thread, static shared bytes of a block and bytes of local memory, as the binary says."""
    source = render(Problem.parse("1024", dtype, trans), Config.parse(text), ARCHES[target])
    with tempfile.TemporaryDirectory() as folder:
        binary = NvrtcCompiler(target).build(source, folder)
    assert binary.registers is not None
    assert binary.smem_bytes is not None
    assert binary.frame_bytes is not None
    return binary.registers, binary.smem_bytes, binary.frame_bytes


if __name__ == "__main__":
    json.dump([compile_variant(*row) for row in json.load(sys.stdin)], sys.stdout)
