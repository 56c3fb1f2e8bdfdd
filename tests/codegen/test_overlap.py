"""Every kernel waits for the ones before it, in every thread, before it touches a matrix."""

import re

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.emit import emit
from tilewright.codegen.families import FAMILIES, complete, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render

ARCH = ARCHES["sm_90a"]
CONFIGS = (
    *(f"{family}:edge={edge}" for family in FAMILIES for edge in ("exact", "bounds", "pad")),
    "simt:edge=bounds,cp_async=1,stages=3,split_k=12,slices=2",
    "skinny:edge=bounds,split_k=4",
    "skinny:edge=bounds,cp_async=1,stages=4",
    "simt:edge=bounds,split_k=4,cluster=1",
    "dmma:edge=bounds,split_k=3,prefetch=2",
)
BODY = re.compile(r'extern "C" __global__.*?\n\{\n(.*?)\n\}\n', re.DOTALL)
TOUCHES = re.compile(
    r"fetch\(shared|put\(shared|        fetch\(\);|stage_small\(0\)|large\.load|[=?] \*a|\*a \*|\bX\[|\breturn\b"
)


def problem_of(config: Config) -> Problem:
    problem = Problem.parse("1024x768x512", "float")
    return Problem.parse("1024x768x512", "double") if list(rejections(problem, config, ARCH)) else problem


@pytest.mark.parametrize("text", CONFIGS)
def test_it_waits_before_it_touches_a_matrix_or_leaves(text: str) -> None:
    config = complete(Config.parse(text))
    bodies = BODY.findall(render(problem_of(config), config, ARCH).code)
    assert len(bodies) == 1 + ("edge=pad" in text)
    for body in bodies:
        touch = TOUCHES.search(body)
        assert touch is not None
        assert body.count("wait_for_previous();") == 1
        assert (
            body.index("\n    wait_for_previous();" if not body.startswith("    wait") else "    wait") < touch.start()
        )


@pytest.mark.parametrize("text", CONFIGS)
def test_the_compiler_keeps_it_there(text: str) -> None:
    pytest.importorskip("cupy")
    from cupy.cuda import nvrtc

    config = complete(Config.parse(text))
    source = render(problem_of(config), config, ARCH)
    program = nvrtc.createProgram(source.code, "kernel.cu", (), ())
    nvrtc.compileProgram(program, ("-arch=compute_90a", "-std=c++17"))
    for entry in nvrtc.getPTX(program).decode().split(".visible .entry")[1:]:
        lines = entry.splitlines()
        waits = [number for number, line in enumerate(lines) if "griddepcontrol.wait" in line]
        touches = re.compile(r"\b(ld|st|atom|red)(\.relaxed|\.volatile|\.\w+)*\.global|cp\.async\.c|^\s*ret;")
        assert len(waits) == 1
        assert waits[0] < next(number for number, line in enumerate(lines) if touches.search(line))


@pytest.mark.parametrize(("arch", "overlaps"), [("sm_80", False), ("sm_90a", True), ("sm_120", True), ("host", False)])
def test_the_emitted_launch_asks_for_it_where_the_device_can(arch: str, overlaps: bool) -> None:
    files = dict(emit(Problem.parse("300x200x100"), complete(Config.parse("simt:edge=bounds")), ARCHES[arch]).files)
    assert ("cudaLaunchAttributeProgrammaticStreamSerialization" in files["gemm.cu"]) == overlaps


def test_the_emitted_launch_brings_every_counter() -> None:
    """Blocks that share a tile of C count each other in groups where they are many."""
    config = complete(Config.parse("simt:edge=bounds,split_k=64"))
    files = dict(emit(Problem.parse("64x64x65536"), config, ARCH).files)
    counters = FAMILIES["simt"].split_counters(config)
    assert counters > 1
    assert re.search(rf"constexpr int COUNTERS +?= {counters};", files["gemm.cu"])
    assert "std::size_t(tiles) * COUNTERS" in files["gemm.cu"]
