"""The table of GPU generations."""

from dataclasses import replace

import pytest
from tilewright.codegen.arch import ARCHES, Arch, arch_named
from tilewright.codegen.errors import ConfigError


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


@pytest.mark.parametrize(
    "wrong",
    [
        {"smem_per_block_bytes": 10**6},
        {"static_smem_bytes": 10**6},
        {"max_threads_per_sm": 1000},
        {"fma_per_cycle_float": 100},
    ],
)
def test_row_with_a_slip_does_not_come_to_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="sm_80"):
        replace(ARCHES["sm_80"], **wrong)  # type: ignore[arg-type]
