"""Clusters of CTAs that add up a tile of C in shared memory, in both families that have them."""

import pytest
from targets import TYPICAL
from tilewright.codegen.legality import rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from variants import variant

pytestmark = pytest.mark.fast

CLUSTERED = (("simt:", "float"), ("dmma:mma_k=4,", "double"))


def reasons(text: str, dtype: str, arch: str = "sm_90a") -> list[str]:
    return list(rejections(Problem.parse("1024", dtype), variant(text), TYPICAL[arch]))


@pytest.mark.parametrize(("family", "dtype"), CLUSTERED)
def test_what_cannot_be_is_refused(family: str, dtype: str) -> None:
    (reason,) = reasons(f"{family}reduce=cluster", dtype)
    assert reason == "CTAs add up in a cluster where they share out k by split_k"
    assert reasons(f"{family}split_k=12,reduce=cluster", dtype) == ["a cluster has at most 8 CTAs, not 12"]
    (reason,) = reasons(f"{family}split_k=4,reduce=cluster,shared=1", dtype)
    assert "not through shared memory that others still read" in reason
    assert reasons(f"{family}split_k=4,shared=1", dtype) == []


@pytest.mark.parametrize(("arch", "allowed"), [("sm_80", False), ("sm_90a", True), ("sm_100", True), ("sm_120", True)])
@pytest.mark.parametrize(("family", "dtype"), CLUSTERED)
def test_new_devices_have_clusters(family: str, dtype: str, arch: str, allowed: bool) -> None:
    given = reasons(f"{family}split_k=4,reduce=cluster", dtype, arch)
    assert given == ([] if allowed else ["the device has clusters"])


@pytest.mark.parametrize(("family", "dtype"), CLUSTERED)
def test_a_cluster_takes_no_workspace(family: str, dtype: str) -> None:
    config = variant(f"{family}block_m=64,block_n=64,block_k=16,split_k=3,slices=2,reduce=cluster")
    problem = Problem.parse("256x128x512", dtype)
    source = render(problem, config, TYPICAL["sm_90a"])
    launch = config.launch_config(problem, 132)
    assert config.workspace_bytes(problem, 132) == 0
    assert launch.grid == (4 * 2 * 3, 1, 1)
    assert launch.static_smem_bytes + launch.dynamic_smem_bytes == 2 * 64 * 64 * problem.dtype.size_bytes
    assert "__cluster_dims__(kSplitK, 1, 1)" in source.code
    assert "workspace" not in source.code
