"""The table of GPU generations."""

import pytest
from tilewright.codegen.arch import ARCHES, Arch, arch_named
from tilewright.codegen.config import MAX_STATIC_SMEM_BYTES
from tilewright.codegen.errors import ConfigError

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("arch", ARCHES.values(), ids=list(ARCHES))
def test_row_agrees_with_its_name(arch: Arch) -> None:
    assert arch_named(arch.name) is arch
    major, minor = arch.capability
    assert arch.is_host or arch.name.removesuffix("a") == f"sm_{major}{minor}"


def test_bare_number_finds_the_architecture_specific_row() -> None:
    assert arch_named("sm_90") is ARCHES["sm_90a"]


@pytest.mark.parametrize("name", ["", "sm_10", "90", "hopper", "sm_90aa", "HOST"])
def test_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=r"arch must be one of sm_75, .*host, got"):
        arch_named(name)


@pytest.mark.parametrize("arch", ARCHES.values(), ids=list(ARCHES))
def test_row_has_no_slip(arch: Arch) -> None:
    """A wrong figure would be a wrong pruning."""
    assert arch.smem_per_block_bytes >= MAX_STATIC_SMEM_BYTES
    assert arch.max_threads_per_block <= arch.max_threads_per_sm
    assert arch.max_threads_per_sm % 32 == arch.fma_per_cycle_float % 32 == 0
    assert any(name.startswith("dmma.") for name in arch.instructions) == bool(arch.dmma_per_cycle)
