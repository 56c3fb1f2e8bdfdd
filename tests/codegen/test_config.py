"""Configs: their values, groups and texts; and the table of architectures."""

import random
from collections.abc import Iterator
from itertools import islice

import pytest
from tilewright.codegen.arch import ARCHES, Arch, arch_named
from tilewright.codegen.config import MAX_STATIC_SMEM_BYTES, Config
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import families, parse
from tilewright.codegen.leaf import Mode
from tilewright.codegen.mechanisms.operands import Fragments
from tilewright.codegen.problem import DType
from tilewright.codegen.render import kernel_name

pytestmark = pytest.mark.fast


def random_configs(family: type[Config], seed: int = 1) -> Iterator[Config]:
    """Random combinations of values, legal or not."""
    draw = random.Random(seed)
    while True:
        yield family.build({leaf.name: draw.choice((leaf.default, *leaf.choices)) for leaf in family.leaves()})


@pytest.mark.parametrize("family", families().values(), ids=families())
def test_text_parses_back_and_names_what_differs(family: type[Config]) -> None:
    for drawn in islice(random_configs(family), 300):
        unused = dict(drawn.values).get("mode") == "none"  # the number of parts has no meaning then
        config = drawn.changed(parts=1) if unused else drawn
        assert parse(str(config)) == config
        assert family.of(config.values) == config
        spelled = ",".join(f"{name}={value}" for name, value in config.values if name not in ("mode", "parts"))
        mode = dict(config.values).get("mode", "none")
        spelled += f",{mode}={dict(config.values)['parts']}" if mode != "none" else ""
        assert parse(f"{config.family}:{spelled}") == config


@pytest.mark.parametrize("family", families().values(), ids=families())
def test_the_default_is_the_tile_alone(family: type[Config]) -> None:
    assert str(family()).count(",") == 0
    assert parse(f"{family.family}:") == family()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("simt:128x256x8,thread=16x8,order=rows,stream_k=1", {"block_n": 256, "thread_m": 16, "order": "rows"}),
        ("simt:64x64x16,l2_prefetch,min_ctas=2", {"l2_prefetch": 1, "min_ctas": 2}),
        ("dmma:64x64x16,split_k=4,reduce=cluster", {"mode": "split_k", "parts": 4, "reduce": "cluster"}),
        ("tiled:32,edge=pad", {"tile_width": 32, "edge": "pad"}),
        ("naive:8x32,unroll=2", {"block_m": 8, "unroll": 2}),
        (" skinny : 4x4x4 , short=n , warps=1x8 ", {"short": "n", "warps_k": 8}),
    ],
)
def test_texts_that_people_write(text: str, values: dict[str, object]) -> None:
    assert values.items() <= dict(parse(text).values).items()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast:1", "family must be one of naive, tiled, simt, skinny, dmma, mma, wgmma, tf32x3, small, got 'fast'"),
        ("simt:64x64", "the tile must read block_mxblock_nxblock_k, got '64x64'"),
        ("simt:speed=3", "simt has the parameters block_m, .*, got 'speed'"),
        ("simt:vec=4", "simt has no parameter 'vec': vectors and edges follow from the problem; leave it out"),
        ("skinny:vec_large=4", "skinny has no parameter 'vec_large': vectors and edges follow from the problem"),
        ("dmma:64x64x16,edge=exact", "dmma has no parameter 'edge': vectors and edges follow from the problem"),
        ("wgmma:vec_a=1", "wgmma has no parameter 'vec_a': vectors and edges follow from the problem"),
        ("tiled:16,edge=exact", "edge must be one of fit, bounds, pad, got 'exact'"),
        ("simt:stages=7", "stages must be one of 3, 2, 4, 5, 6, 8, got 7"),
        ("simt:load=magic", "load must be one of cp_async, registers, tma, got 'magic'"),
        ("simt:stages=3,stages=4", "stages is given twice"),
        ("simt:split_k=2,stream_k=1", "mode is given twice"),
        ("simt:split_k=2000", "parts must be a whole number from 1 to 1024, got 2000"),
        ("tiled:16,skew=1e9", "skew must be one of 0, 1, got '1e9'"),
    ],
)
def test_a_mistake_is_reported_in_one_line_with_the_choices(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert text in str(caught.value)


def test_groups_are_typed_and_changed_makes_another() -> None:
    config = parse("dmma:64x64x16,persistent=4,fragments=single")
    assert config.pipeline.fragments is Fragments.SINGLE
    assert config.persistent_tiles == 4
    assert config.changed(mode=Mode.NONE, parts=1) == parse("dmma:64x64x16,fragments=single")


def test_names_of_kernels_are_short_and_differ() -> None:
    names = set()
    for family in families().values():
        for config in set(islice(random_configs(family, seed=2), 500)):
            name = kernel_name(config, DType.DOUBLE, "nt")
            assert len(name) <= 48
            names.add((name, config))
    assert len({name for name, _ in names}) == len(names)


def test_canonical_order_puts_simple_families_and_defaults_first() -> None:
    texts = ["dmma:64x64x16", "simt:64x64x16,stages=2", "simt:64x64x16", "naive:8x32", "tiled:16"]
    ordered = sorted(map(parse, texts), key=lambda config: config.canonical)
    assert list(map(str, ordered)) == [texts[i] for i in (3, 4, 2, 1, 0)]


@pytest.mark.parametrize("arch", ARCHES.values(), ids=list(ARCHES))
def test_row_agrees_with_its_name(arch: Arch) -> None:
    assert arch_named(arch.name) is arch
    major, minor = arch.capability
    assert arch.is_host or arch.name.removesuffix("a") == f"sm_{major}{minor}"


def test_bare_number_finds_the_architecture_specific_row() -> None:
    assert arch_named("sm_90") is ARCHES["sm_90a"]


@pytest.mark.parametrize("name", ["", "sm_10", "90", "hopper", "sm_90aa", "HOST"])
def test_unknown_name_is_refused_with_a_list_of_names(name: str) -> None:
    with pytest.raises(ConfigError, match=r"arch must be one of sm_75, .*host, got"):
        arch_named(name)


@pytest.mark.parametrize("arch", ARCHES.values(), ids=list(ARCHES))
def test_row_is_consistent(arch: Arch) -> None:
    """Wrong figures of an architecture would prune the wrong configs."""
    assert arch.smem_per_block_bytes >= MAX_STATIC_SMEM_BYTES
    assert arch.max_threads_per_block <= arch.max_threads_per_sm
    assert arch.max_threads_per_sm % 32 == arch.fma_per_cycle_float % 32 == 0
    assert any(name.startswith("dmma.") for name in arch.instructions) == bool(arch.dmma_per_cycle)
