"""The simt family: what its rules refuse, and what the compiler makes of it."""

import itertools
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from simt_space import SIMT, is_deep, some, space, tried
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import COMMON, complete, rejections
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from tilewright.tuner.search.legal import may_hold
from variants import most_spilled_bytes

SM_90 = ARCHES["sm_90a"]
TARGETS = ("sm_80", "sm_90a", "sm_100", "sm_120")
SAMPLE = 24
"""Variants that are compiled for each target, beside those of deep tiles."""
DEEP = 4
"""Variants of deep tiles."""
SPREAD = 6
"""Variants whose copies are spread."""
BULK = 4
"""Variants whose tiles come by bulk copies."""


def reasons(
    text: str, problem: str = "1024", dtype: str = "float", trans: str = "nn", arch: str = "sm_90a"
) -> list[str]:
    config = complete(Config.parse(f"simt:{text}"))
    return list(rejections(Problem.parse(problem, dtype, trans), config, ARCHES[arch]))


@pytest.mark.parametrize(
    ("text", "problem", "dtype", "trans", "reason"),
    [
        ("block_m=16,thread_m=4,lanes_m=8", "1024", "float", "nn", "block_m 16 is a multiple of the rows of a warp"),
        ("block_n=16,thread_n=8,lanes_m=8", "1024", "float", "nn", "block_n 16 is a multiple of the columns of a"),
        ("stages=3", "1024", "float", "nn", "tiles that pass through registers use two stages, not 3"),
        ("vec_a=4", "64x64x30", "float", "nn", "vec_a 4 is at most 16 bytes and divides the stored rows of A"),
        ("vec_b=2", "64x63x64", "float", "nn", "vec_b 2 is at most 16 bytes and divides the stored rows of B"),
        ("vec_c=2", "64x63x64", "float", "nt", "vec_c 2 is at most 16 bytes and divides the stored rows of C"),
        ("vec_b=4", "1024", "double", "nn", "vec_b 4 is at most 16 bytes and divides the stored rows of B"),
        ("vec_c=2,b_k_inner=1", "1024", "float", "nt", "vec_c 2 is at most the neighbours in a row of C"),
        ("cp_async=1,vec_a=4", "1024", "float", "nn", "cp.async transposes A element by element: vec_a 4 is 1"),
        ("cp_async=1,vec_b=2", "1024", "float", "nt", "cp.async transposes B element by element: vec_b 2 is 1"),
        ("a_k_inner=1", "1024", "float", "tn", "k is innermost in the tiles of A only if stored rows of A run along k"),
        ("b_k_inner=1", "1024", "float", "nn", "k is innermost in the tiles of B only if stored rows of B run along k"),
        ("prefetch=1,slices=4,block_k=8,a_k_inner=1", "1024", "float", "nn", "block_k 8 is whole steps for each of 4"),
        ("block_m=128,block_n=16,lanes_m=16,thread_m=8,thread_n=8,block_k=32", "1024", "float", "nn", "copies"),
        ("block_m=256,block_n=128,thread_m=16,thread_n=8,block_k=32", "1024", "float", "nn", "at most 2560"),
        ("thread_m=8,thread_n=8,block_m=128,block_n=128,min_blocks=3", "1024", "float", "nn", "registers of 3"),
        ("block_m=40,thread_m=5,lanes_m=2", "1024", "float", "nn", "thread_m 5 * lanes_m 2, and its columns are whole"),
        ("block_n=40,thread_n=5,lanes_m=16", "1024", "float", "nn", "and its columns are whole vectors of 16 bytes"),
        ("block_n=40,thread_n=10,lanes_m=8,vec_c=4", "1024", "float", "nn", "vec_c 4 is at most the neighbours"),
        ("thread_m=2,block_k=64,slices=16", "1024", "float", "nn", "thread_m 2 * thread_n 4 sums are whole vectors"),
        ("thread_m=8,thread_n=8,block_k=128,slices=2", "1024", "float", "nn", "a thread copies at most 32 elements"),
        ("min_blocks=8,block_m=128,block_n=128", "1024", "float", "nn", "threads and shared memory of 8 blocks fit"),
        ("copy_groups=2", "1024", "float", "nn", "copies that are spread, in 2 groups, are those of cp.async"),
        ("copy_groups=4,cp_async=1,prefetch=1,block_k=8,slices=2", "1024", "float", "nn", "copy_groups 4 is at most"),
        ("copy_groups=4,cp_async=1,block_k=32,slices=4,vec_b=4", "64", "float", "tn", "copy_groups 4 is at most"),
        ("apart=1", "1024", "float", "nn", "only one of several slices can go apart, not with slices 1"),
        ("block_m=32,block_n=32,slices=16,block_k=64,apart=1", "1024", "float", "nn", "has barriers for 15 slices of"),
        ("slices=4,apart=1,vec_b=4", "1024", "float", "nn", "copies whole vectors: block_k 8 in 4, vec_a 1, vec_b 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(text: str, problem: str, dtype: str, trans: str, reason: str) -> None:
    given = reasons(text, problem, dtype, trans)
    assert any(reason in each for each in given), given


def test_old_devices_have_no_cp_async() -> None:
    assert reasons("cp_async=1", arch="sm_75") == ["the device has cp.async"]


def test_padded_operands_are_aligned_whatever_the_problem() -> None:
    assert reasons("vec_a=4,vec_b=4,vec_c=4,edge=pad", "63x61x59") == []


def test_slices_of_a_warp_go_apart_without_barriers_by_number() -> None:
    sixteen = "block_m=16,block_n=32,thread_m=4,thread_n=4,lanes_m=4,block_k=64,cp_async=1,stages=3,slices=16,apart=1"
    assert reasons(sixteen) == []
    source = render(Problem.parse("1024"), complete(Config.parse(f"simt:{sixteen}")), SM_90)
    assert "void sync_slice() { __syncwarp(); }" in source.code
    assert "bar.sync" not in source.code


@pytest.mark.parametrize("k_inner", [0, 1])
def test_slices_that_go_apart_have_rows_of_their_own_in_shared_memory(k_inner: int) -> None:
    text = f"simt:block_m=64,block_n=32,block_k=32,slices=2,stages=3,cp_async=1,b_k_inner={k_inner},apart="
    together, apart = (
        render(Problem.parse("256x128x512", trans="nt"), complete(Config.parse(f"{text}{each}")), SM_90).launch
        for each in (0, 1)
    )
    tile_b = 4 * 3 * (32 * (32 + 4)) if not k_inner else 4 * 3 * (2 * 32 * (16 + 4))
    assert apart.static_smem_bytes + apart.dynamic_smem_bytes == 4 * 3 * (32 * (64 + 4)) + tile_b
    assert together.static_smem_bytes + together.dynamic_smem_bytes == 4 * 3 * (32 * (64 + 4) + 32 * (32 + 4))
    assert apart.block == together.block


def test_source_tells_alignment_workspace_and_large_shared_memory() -> None:
    problem = Problem.parse("256x128x512")
    config = Config.parse(
        "simt:block_m=128,block_n=128,thread_m=8,thread_n=8,cp_async=1,a_k_inner=1,block_k=16,stages=4,"
        "vec_a=4,vec_b=2,vec_c=1,split_k=4"
    )
    source = render(problem, config, SM_90)
    assert source.alignment == (4, 2, 1)
    assert source.workspace_bytes == 2 * 4 * 128 * 128 * 4 + 2 * 4
    assert source.launch.grid == (8, 1, 1)
    assert source.launch.static_smem_bytes == 0
    assert source.launch.dynamic_smem_bytes == 4 * (128 * (16 + 4) + 16 * (128 + 4)) * 4
    assert "T* __restrict__ workspace" in source.code
    assert "extern __shared__" in source.code


@pytest.mark.parametrize("split_k", [1, 12])
def test_a_cluster_has_two_to_eight_blocks(split_k: int) -> None:
    assert reasons(f"split_k={split_k},cluster=1") == [f"a cluster has 2 to 8 blocks, not {split_k}"]


@pytest.mark.parametrize(("arch", "allowed"), [("sm_80", False), ("sm_90a", True), ("sm_100", True), ("sm_120", True)])
def test_new_devices_have_clusters(arch: str, allowed: bool) -> None:
    given = reasons("split_k=4,cluster=1", arch=arch)
    assert given == ([] if allowed else ["the device has clusters"])


def test_a_cluster_adds_up_in_shared_memory_without_a_workspace() -> None:
    config = Config.parse("simt:block_m=64,block_n=64,block_k=8,split_k=3,slices=2,cluster=1")
    source = render(Problem.parse("256x128x512", "float"), config, SM_90)
    assert source.workspace_bytes == 0
    assert source.launch.grid == (4 * 2 * 3, 1, 1)
    assert source.launch.static_smem_bytes + source.launch.dynamic_smem_bytes == 2 * 64 * 64 * 4
    assert "__cluster_dims__(SPLIT_K, 1, 1)" in source.code
    assert "workspace" not in source.code


def test_a_cluster_writes_its_own_sums() -> None:
    reason = "blocks of a cluster write their own sums: others still read their shared memory"
    assert reasons("split_k=4,cluster=1,staged_c=1") == [reason]
    assert reasons("split_k=4,slices=2,staged_c=1") == []


def test_atomics_are_for_blocks_that_share_tiles_in_memory() -> None:
    assert reasons("atomic=1") == ["sums are added by atomics where blocks share out k: split_k 1 is above 1"]
    assert reasons("atomic=1,split_k=4,cluster=1") == ["blocks of a cluster add up in shared memory, not by atomics"]
    assert reasons("atomic=1,split_k=64,slices=2,staged_c=1") == []


def test_atomics_take_one_tile_of_memory_and_say_that_bits_differ() -> None:
    problem = Problem.parse("256x128x4096")
    atomic, ordered = (render(problem, Config.parse(f"simt:split_k=64,atomic={each}"), SM_90) for each in (1, 0))
    assert atomic.workspace_bytes == 8 * (64 * 64 * 4 + 4)
    assert ordered.workspace_bytes == 64 * 8 * 64 * 64 * 4 + 8 * 4
    sentence = "are not the same to the bit: blocks add their sums in the order in which they come"
    assert (sentence in atomic.code, sentence in ordered.code) == (True, False)
    assert "red.relaxed.gpu.global.add.v4.f32" in atomic.code


def test_sums_that_pass_through_shared_memory_need_room_for_a_row_of_each_thread() -> None:
    text = "simt:block_m=64,block_n=128,thread_m=2,thread_n=8,block_k=8,staged_c={}"
    bytes_of = [SIMT.smem_bytes(DType.FLOAT, complete(Config.parse(text.format(staged)))) for staged in (0, 1)]
    # 4 x 4 warps of 8 rows; each 32 wide and, so that four rows of a write meet in no bank, 8 spare.
    assert bytes_of == [2 * 8 * (64 + 4 + 128 + 4) * 4, 16 * 8 * (32 + 8) * 4]


# ---- What the compiler makes of it -----------------------------------------------------------------------------


ENDINGS = (
    ("block_m=128,block_n=256,block_k=16,thread_m=16,thread_n=8,lanes_m=4,stages=3,cp_async=1,prefetch=1,staged_c=1",
     "float"),
    ("block_m=64,block_n=64,block_k=16,thread_m=8,thread_n=8,lanes_m=4,prefetch=1,staged_c=1", "float"),
    ("block_m=64,block_n=32,block_k=16,thread_m=4,thread_n=4,slices=4,split_k=4,staged_c=1", "double"),
    ("block_m=64,block_n=64,block_k=16,thread_m=8,thread_n=4,vec_b=4,vec_c=4,prefetch=1,split_k=64,atomic=1",
     "float"),
    ("block_m=32,block_n=64,block_k=32,thread_m=8,thread_n=8,lanes_m=4,vec_b=4,vec_c=4,prefetch=1,slices=4,split_k=16",
     "float"),
)  # fmt: skip


def sample() -> list[tuple[str, str, str, str]]:
    """Config, dtype, transposes and target: the same variants for every target that can run them, and some of
    clusters."""
    generator = random.Random(3)
    rows = []
    for dtype, trans, count in (("float", "nn", 10), ("float", "nt", 5), ("float", "tn", 3), ("double", "nn", 6)):
        problem = Problem.parse("1024", dtype, trans)
        targets = [target for target in reversed(TARGETS) if holds(problem, target)]
        listed = some(problem, targets[0])
        common = (c for c in generator.sample(listed, len(listed)) if all(holds(problem, t, c) for t in targets[1:]))
        rows += [(str(config), dtype, trans) for config in itertools.islice(common, count)]
    assert len(rows) == SAMPLE
    deep = [config for config in space(Problem.parse("16x4096x4096"))[0] if is_deep(config)]
    rows += [(str(c), "float", "nn") for c in generator.sample([c for c in deep if not c["bulk"]], DEEP)]
    rows += [(str(c), "float", "nn") for c in generator.sample([c for c in deep if c["bulk"]], BULK)]
    clustered = [each for each in some(Problem.parse("1024"), "sm_90a") if each["cluster"] == 1]
    rows += [(str(config), "float", "nn") for config in generator.sample(clustered, 4)]
    apart = [each for each in some(Problem.parse("512"), "sm_90a") if each["apart"] == 1]
    rows += [(str(config), "float", "nn") for config in generator.sample(apart, 6)]
    for shape in ("777", "33x2000x4000"):
        uneven = [each for each in tried(Problem.parse(shape)) if SIMT.uneven(each)]
        rows += [(str(config), "float", "nn") for config in generator.sample(uneven, 4)]
    copied = [text for text, dtype, trans in rows if (dtype, trans) == ("float", "nn") and "cp_async=1" in text]
    rows += [(text.replace("copy_groups=1", f"copy_groups={groups}"), "float", "nn")
             for groups, text in zip(itertools.cycle((2, 4)), copied[:SPREAD])]  # fmt: skip
    rows += [(f"simt:{text}", dtype, "nn") for text, dtype in ENDINGS]
    return [(*row, target) for row in rows for target in TARGETS if not reasons_of(*row, target)]


def holds(problem: Problem, target: str, config: Config | None = None) -> bool:
    """Whether the space of a target has a variant, or any at all."""
    rules = (*SIMT.constraints, *COMMON, *SIMT.advice)
    return may_hold(problem, ARCHES[target], SIMT, rules, dict(config.values) if config else {})


def reasons_of(text: str, dtype: str, trans: str, target: str) -> list[str]:
    """Why a target cannot hold a variant."""
    return reasons(text.removeprefix("simt:"), dtype=dtype, trans=trans, arch=target)


def test_nothing_spills_and_resources_are_as_predicted() -> None:
    pytest.importorskip("cupy")
    rows = sample()
    workers = min(4, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(_compiled, (rows[i::workers] for i in range(workers))))
    for part, start in zip(parts, range(workers)):
        for (text, dtype, trans, target), said in zip(rows[start::workers], part, strict=True):
            registers, smem_bytes, spilled = said
            config, problem = complete(Config.parse(text)), Problem.parse("1024", dtype, trans)
            assert spilled <= most_spilled_bytes(config, target, dtype), (text, target)
            assert registers <= SIMT.registers(DType.parse(dtype), config), (text, target)
            assert smem_bytes == SIMT.launch(problem, config).static_smem_bytes, (text, target)


def _compiled(rows: list[tuple[str, str, str, str]]) -> list[list[int]]:
    script = Path(__file__).with_name("compile_variants.py")
    done = subprocess.run([sys.executable, script], input=json.dumps(rows), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compiled: list[list[int]] = json.loads(done.stdout)
    return compiled
