"""PDL: each thread of a kernel waits for the kernels before it, before it accesses a matrix."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from quick import TYPICAL
from tilewright.codegen.bundle import Served
from tilewright.codegen.config import Config
from tilewright.codegen.emit import emit
from tilewright.codegen.legality import fitted, serves
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import LaunchConfig
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import Binary
from tilewright.runtime.product.kernel import Kernel
from variants import ODD, WHOLE, changed, coarse, edges, product_families, variant

TARGET = TYPICAL["sm_90a"]
CONFIGS = (
    *(kernel for family in product_families() for kernel in edges(family)),
    ("simt:load=cp_async,stages=3,split_k=12,slices=2", ODD),
    ("skinny:split_k=4", ODD),
    ("skinny:load=cp_async,stages=4", ODD),
    ("simt:split_k=4,reduce=cluster", ODD),
    ("dmma:split_k=3,fragments=double", ODD),
    ("dmma:l2_prefetch=1", ODD),
    ("simt:l2_prefetch=1,split_k=2", ODD),
    ("simt:l2_prefetch=1,load=cp_async,stages=3", WHOLE),
    ("skinny:l2_prefetch=1", ODD),
    ("simt:stream_k=1", ODD),
    ("dmma:persistent=4", ODD),
)
"""Texts of configs, and the shapes for which they are rendered."""
BODY = re.compile(r'extern "C" __global__.*?\n\{\n(.*?)\n\}\n', re.DOTALL)
TOUCHES = re.compile(
    r"fetch\(shared|put\(shared|        (pipeline\.)?fetch\(|tiles\) fetch\(|exponents\[each|"
    r"produce\(|split_a(long|cross)\(|stage_small\(0\)|large\.(load|start)|[=?] \*a|\*a \*|\bto\[row|\breturn;"
)


def problem_of(config: Config, shape: str) -> Problem:
    problem = coarse(Problem.parse(shape))
    return problem if serves(config, problem, TARGET) else Problem.parse(shape, "double")


@pytest.mark.parametrize(("text", "shape"), CONFIGS)
def test_a_kernel_waits_before_it_accesses_a_matrix_and_then_lets_the_next_kernel_start(text: str, shape: str) -> None:
    config = variant(text)
    source = render(problem_of(config, shape), config, TARGET)
    assert (source.preparation is not None) == ("edge=pad" in text or config.terms > 0)
    bodies = [BODY.findall(each.code)[0] for each in (source, source.preparation) if each]
    for body in bodies:
        touch = TOUCHES.search(body)
        assert touch is not None
        assert body.count("griddepcontrol_wait();") == 1
        assert body.index("griddepcontrol_wait();") < touch.start()
    assert config.pdl == (config.family in ("simt", "skinny", "dmma", "mma", "wgmma", "tf32x3"))
    assert bodies[0].count("launch_dependents();") == config.pdl
    if config.pdl:
        # Before this kernel waits, the next kernel must not start: it would not wait for the kernels before this one.
        assert bodies[0].index("griddepcontrol_wait();") < bodies[0].index("launch_dependents();")


@pytest.mark.nvrtc
@pytest.mark.parametrize(("text", "shape"), CONFIGS)
def test_the_compiler_keeps_the_wait_before_accesses(text: str, shape: str) -> None:
    from cupy.cuda import nvrtc

    config = variant(text)
    source = render(problem_of(config, shape), config, TARGET)
    for each in filter(None, (source, source.preparation)):
        program = nvrtc.createProgram(each.code, "kernel.cu", (), ())
        nvrtc.compileProgram(program, ("-arch=compute_90a", "-std=c++17"))
        (entry,) = nvrtc.getPTX(program).decode().split(".visible .entry")[1:]
        lines = entry.splitlines()
        waits = [number for number, line in enumerate(lines) if "griddepcontrol.wait" in line]
        touches = re.compile(r"\b(ld|st|atom|red)(\.relaxed|\.volatile|\.\w+)*\.global|cp\.async\.c|^\s*ret;")
        assert len(waits) == 1
        assert waits[0] < next(number for number, line in enumerate(lines) if touches.search(line))


@pytest.mark.parametrize(("trans", "whole", "split"), [
    ("nn", (r"kBlockM, .*>\(matrix_a \+ row0 \* lda,", r"kBlockN>\(matrix_b \+ col0,"),
     (r"kBlockM, .*>\(matrix_a \+ row0 \* lda \+ k_begin,", r"kBlockN>\(matrix_b \+ k_begin \* ldb \+ col0,")),
    ("tt", (r"kBlockM>\(matrix_a \+ row0,", r"kBlockN, .*>\(matrix_b \+ col0 \* ldb,"),
     (r"kBlockM>\(matrix_a \+ k_begin \* lda \+ row0,", r"kBlockN, .*>\(matrix_b \+ col0 \* ldb \+ k_begin,")),
])  # fmt: skip
@pytest.mark.parametrize("family", ["simt", "dmma"])
def test_a_kernel_prefetches_tiles_before_it_waits(
    family: str, trans: str, whole: tuple[str, str], split: tuple[str, str]
) -> None:
    problem, config = Problem.parse("1024x768x512", "double", trans), variant(f"{family}:l2_prefetch=1")
    for each, tiles in ((config, whole), (changed(config, mode="split_k", parts=2), split)):
        before, _, after = BODY.findall(render(problem, each, TARGET).code)[0].partition("griddepcontrol_wait();")
        for tile in tiles:
            assert re.search(rf"prefetch_tile<.*{tile}", before)
        assert "prefetch_tile<" not in after
    assert "prefetch" not in render(problem, changed(config, l2_prefetch=0), TARGET).code


@pytest.mark.parametrize("trans", ["nn", "nt"])
def test_skinny_prefetches_before_it_waits(trans: str) -> None:
    problem = Problem.parse("4x4096x4096", "float", trans)
    body, plain = (
        BODY.findall(render(problem, variant(f"skinny:l2_prefetch={each}"), TARGET).code)[0] for each in (1, 0)
    )
    assert body.index("large.prefetch();") < body.index("griddepcontrol_wait();")
    assert "prefetch" not in plain


def test_a_kernel_that_packs_lets_the_product_start() -> None:
    config = variant("simt:pack_a=1,pack_b=1,load=cp_async,stages=3")
    first = render(Problem.parse("1024x768x512"), config, TARGET).preparation
    assert first is not None
    (packing,) = BODY.findall(first.code)
    assert packing.index("griddepcontrol_wait();") < packing.index("launch_dependents();") < packing.index("pack_tile<")


def test_a_launch_is_limited_to_an_even_share() -> None:
    """An SM holds the CTAs of an even share of the grid, and not one more."""
    for ctas, sm_count, each in ((132, 132, 1), (49, 132, 1), (133, 132, 2), (330, 132, 3), (2000, 132, 16)):
        for typical in (TARGET, TYPICAL["sm_100"], TYPICAL["sm_120"]):
            arch, target = typical.arch, replace(typical, sm_count=sm_count)
            launch = LaunchConfig((ctas, 1, 1), (128, 1, 1), 0, 5000)
            limited = launch.limited(target)
            bytes_each = limited.dynamic_smem_bytes + 5000 + arch.smem_reserved_bytes
            assert limited.dynamic_smem_bytes + 5000 <= arch.smem_per_block_bytes
            if each > 1:  # the largest shared memory of one CTA may leave room for a second small one
                assert arch.smem_per_sm_bytes // bytes_each == each
            assert replace(limited, dynamic_smem_bytes=0) == launch


def test_a_launch_for_groups_is_limited_by_the_ctas_that_have_work() -> None:
    """The grid has CTAs for the most tiles that groups can have, which would allow a third CTA on an SM."""
    groups = Problem(1812, 1024, 1024, batch=8, ragged="m")
    config, stream = variant("simt:64x128x16,thread=8"), variant("simt:64x128x16,thread=8,stream_k=1")
    assert config.ctas_along_x(groups, 132) == 37 * 8 > 2 * 132 >= config.working_ctas(groups, 132) == 32 * 8
    assert stream.working_ctas(groups, 132) == 132
    assert config.working_ctas(replace(groups, batch=4000), 132) == 1812 * 8, "groups of one row have a tile each"
    for other in (Problem(1812, 1024, 1024), Problem(64, 64, 64, batch=8), replace(groups, ragged="k")):
        assert config.working_ctas(other, 132) == 0, "all CTAs of the grid have work"
    device, launches = HostDevice(), list[LaunchConfig]()
    device.info = KNOWN["nvidia-h100-80gb-hbm3"]
    device.load = lambda binary, name: SimpleNamespace(bound=lambda how, codes: launches.append(how))  # type: ignore
    fit = fitted(groups, config, device.info)
    Kernel(device, groups, fit, render(groups, config, device.info, fit), Binary(b""))
    launch = config.launch_config(groups, 132)
    assert launches == [launch.limited(device.info, 32 * 8)]
    assert launches != [launch.limited(device.info)]


def test_a_launch_keeps_the_shared_memory_that_it_needs() -> None:
    large, many = LaunchConfig((300, 1, 1), (64, 1, 1), 200_000), LaunchConfig((10**6, 1, 1), (64, 1, 1), 100)
    assert large.limited(TARGET) == large
    assert many.limited(TARGET) == many
    for arch in ("sm_80", "host"):  # these have no PDL
        assert LaunchConfig((9, 1, 1), (64, 1, 1)).limited(TYPICAL[arch]) == LaunchConfig((9, 1, 1), (64, 1, 1))


@pytest.mark.parametrize(("arch", "config", "pdl", "limited"), [
    ("sm_90a", "simt:", True, True), ("sm_80", "simt:", False, False), ("sm_120", "simt:", True, True),
    ("sm_90a", "naive:", True, False),
])  # fmt: skip
def test_the_emitted_launch_does_the_same_where_the_device_can(
    arch: str, config: str, pdl: bool, limited: bool
) -> None:
    code = dict(emit(Served(Problem.parse("300x200x100"), variant(config), TYPICAL[arch]), "gemm").files)["gemm.cu"]
    rows = re.findall(r"^    (.*),  // tile, threads, shared memory, PDL$", code, re.MULTILINE)
    assert {row.rsplit(", ", 2)[-2:] == [str(pdl).lower(), str(limited).lower()] for row in rows} == {True}


def test_a_bundle_of_two_architectures_launches_by_pdl_where_the_text_waits() -> None:
    """A kernel of sm_80 may run on a later device, where its text does not wait for the kernel before it."""
    rows = [Served(Problem.parse("300x200x100"), variant("simt:"), TYPICAL[arch]) for arch in ("sm_80", "sm_90a")]
    files = dict(emit(rows, "gemm").files)
    for arch, pdl in (("sm_80", "false"), ("sm_90a", "true")):
        facts = re.findall(r"^    (.*),  // tile, threads, shared memory, PDL$", files[f"gemm_{arch}.cu"], re.MULTILINE)
        assert facts
        assert {row.split(", ")[-2] for row in facts} == {pdl}
