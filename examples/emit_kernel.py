"""Kernels as files for another project: `python examples/emit_kernel.py FOLDER`. Needs no GPU and no compiler."""

import sys
from pathlib import Path

import tilewright
from tilewright.codegen.families import parse
from tilewright.runtime.device.known import target_named


def main(folder: Path) -> None:
    target = target_named("sm_80")
    served = [
        tilewright.Served(tilewright.Problem(1024, 768, 512), parse("tiled:32,skew=1"), target),
        tilewright.Served(tilewright.Problem(4096, 16, 4096), parse("skinny:4x4x4"), target),
    ]
    emitted = tilewright.emit(served, "my_gemm", tilewright.Layout(main=True))
    for path in emitted.write(folder):
        print(f"{path}: {len(path.read_text().splitlines())} lines")
    print("build the self-test with: nvcc -O3 -std=c++17 -arch=sm_80 my_gemm.cu my_gemm_main.cu -o my_gemm_test")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out"))
