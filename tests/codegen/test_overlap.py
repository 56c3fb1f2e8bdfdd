"""Every kernel waits for the ones before it, in every thread, before it touches a matrix."""

import re
from dataclasses import replace

import pytest
from stored import INFO
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.emit import emit
from tilewright.codegen.families import FAMILIES, complete, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import LaunchConfig
from tilewright.tuner.search.candidates import candidates
from variants import settled

ARCH = ARCHES["sm_90a"]
CONFIGS = (
    *(f"{family}:edge={edge}" for family in FAMILIES for edge in ("exact", "bounds", "pad")),
    "simt:edge=bounds,cp_async=1,stages=3,split_k=12,slices=2",
    "skinny:edge=bounds,split_k=4",
    "skinny:edge=bounds,cp_async=1,stages=4",
    "simt:edge=bounds,split_k=4,cluster=1",
    "dmma:edge=bounds,split_k=3,prefetch=2",
    "dmma:edge=bounds,warm_l2=1",
    "simt:edge=bounds,warm_l2=1,split_k=2,tail=4",
    "simt:edge=exact,warm_l2=1,cp_async=1,stages=3,vec_b=4",
    "skinny:edge=bounds,warm_l2=1",
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


@pytest.mark.parametrize("text", CONFIGS)
def test_it_lets_the_next_one_come_where_all_blocks_do_alike(text: str) -> None:
    config = complete(Config.parse(text))
    source = render(problem_of(config), config, ARCH)
    assert source.early == (config.family in ("simt", "skinny", "dmma") and "tail=4" not in text)
    body = BODY.findall(source.code)[0]
    assert body.count("let_next_come();") == source.early
    if source.early:
        # Not before it has waited itself: then the next one would come before those that this one waits for end.
        assert body.index("wait_for_previous();") < body.index("let_next_come();")


@pytest.mark.parametrize(("trans", "parts"), [
    ("nn", ("BLOCK_M, WARM_K>(A + row0 * lda + k_begin", "WARM_K, BLOCK_N>(B + k_begin * ldb + col0")),
    ("tt", ("WARM_K, BLOCK_M>(A + k_begin * lda + row0", "BLOCK_N, WARM_K>(B + col0 * ldb + k_begin")),
])  # fmt: skip
@pytest.mark.parametrize("family", ["simt", "dmma"])
def test_it_asks_for_tiles_before_it_waits(family: str, trans: str, parts: tuple[str, str]) -> None:
    problem = Problem.parse("1024x768x512", "double", trans)
    config = complete(Config.parse(f"{family}:warm_l2=1"))
    body = BODY.findall(render(problem, config, ARCH).code)[0]
    for part in parts:
        assert body.index(f"warm_l2<{part}") < body.index("wait_for_previous();")
    plain = complete(Config.parse(f"{family}:warm_l2=0"))
    assert "warm_l2<" not in render(problem, plain, ARCH).code


@pytest.mark.parametrize("trans", ["nn", "nt"])
def test_skinny_asks_for_parts_before_it_waits(trans: str) -> None:
    problem = Problem.parse("4x4096x4096", "float", trans)
    body, plain = (
        BODY.findall(render(problem, complete(Config.parse(f"skinny:warm_l2={warm}")), ARCH).code)[0] for warm in (1, 0)
    )
    assert body.index("large.ask();") < body.index("wait_for_previous();")
    assert "large.ask();" not in plain


def test_a_kernel_that_packs_lets_the_product_come() -> None:
    text, problem = "simt:pack_a=1,pack_b=1,vec_a=4,vec_b=4,cp_async=1,stages=3", Problem.parse("1024x768x512")
    for tail, early in (("", True), (",split_k=2,tail=4", False)):
        packing = BODY.findall(render(problem, complete(Config.parse(text + tail)), ARCH).code)[1]
        assert ("let_next_come();" in packing) == early
        assert packing.index("wait_for_previous();") < packing.index("let_next_come();" if early else "pack_tile<")


def test_searches_ask_for_tiles_first_where_products_are_short_and_all_blocks_run_at_once() -> None:
    spaces = settled("simt", "skinny", warm_l2=(0, 1), block_m=(64,), block_n=(32, 64))

    def tried(shape: str, arch: str = "sm_90a", family: str = "simt") -> set[tuple[int, bool]]:
        info = replace(INFO, arch=ARCHES[arch])
        configs = candidates(Problem.parse(shape), info, spaces).configs
        found = [dict(config.values) for config in configs if config.family == family]
        return {(values["warm_l2"], values.get("tail", 1) == 1) for values in found}

    assert {(0, True), (1, True)} <= tried("512")
    assert {(0, True), (1, True)} <= tried("1x4096x4096", family="skinny")
    assert (1, False) not in tried("1023x769x511")
    assert {warm for warm, _ in tried("2048")} == {warm for warm, _ in tried("512", "sm_80")} == {0}


def test_a_launch_is_spread_over_a_device() -> None:
    """As many blocks as an even share of the grid fit on a multiprocessor, and not one more."""
    for blocks, sm_count, each in ((132, 132, 1), (49, 132, 1), (133, 132, 2), (330, 132, 3), (2000, 132, 16)):
        for arch in (ARCH, ARCHES["sm_100"], ARCHES["sm_120"]):
            launch = LaunchConfig((blocks, 1, 1), (128, 1, 1), 0, 5000)
            found = launch.spread(arch, sm_count)
            bytes_each = found.dynamic_smem_bytes + 5000 + arch.smem_reserved_bytes
            assert found.dynamic_smem_bytes + 5000 <= arch.smem_per_block_bytes
            if each > 1:  # else the most that a block can have may leave room for another small one
                assert arch.smem_per_sm_bytes // bytes_each == each
            assert replace(found, dynamic_smem_bytes=0) == launch


def test_a_launch_keeps_the_shared_memory_that_it_needs() -> None:
    large, many = LaunchConfig((300, 1, 1), (64, 1, 1), 200_000), LaunchConfig((10**6, 1, 1), (64, 1, 1), 100)
    assert large.spread(ARCH, 132) == large
    assert many.spread(ARCH, 132) == many
    for arch in ("sm_80", "host"):  # nothing comes early there
        assert LaunchConfig((9, 1, 1), (64, 1, 1)).spread(ARCHES[arch], 132) == LaunchConfig((9, 1, 1), (64, 1, 1))


@pytest.mark.parametrize(("arch", "config", "spreads"), [
    ("sm_90a", "simt:edge=bounds", True), ("sm_80", "simt:edge=bounds", False),
    ("sm_90a", "simt:edge=bounds,split_k=2,tail=4", False), ("sm_90a", "naive:edge=bounds", False),
])  # fmt: skip
def test_the_emitted_launch_is_spread_too(arch: str, config: str, spreads: bool) -> None:
    files = dict(emit(Problem.parse("300x200x100"), complete(Config.parse(config)), ARCHES[arch]).files)
    assert ("spread(blocks, &smem_bytes)" in files["gemm.cu"]) == spreads


@pytest.mark.parametrize(("arch", "overlaps"), [("sm_80", False), ("sm_90a", True), ("sm_120", True), ("host", False)])
def test_the_emitted_launch_asks_for_it_where_the_device_can(arch: str, overlaps: bool) -> None:
    files = dict(emit(Problem.parse("300x200x100"), complete(Config.parse("simt:edge=bounds")), ARCHES[arch]).files)
    assert ("cudaLaunchAttributeProgrammaticStreamSerialization" in files["gemm.cu"]) == overlaps
