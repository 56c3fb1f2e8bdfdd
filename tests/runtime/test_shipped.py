"""Records that ship: their names, the text that each stands for, and how each is fitted to its own shape."""

import pytest
from stored import shipped
from tilewright.codegen.config import Config
from tilewright.codegen.leaf import Edge
from tilewright.codegen.render import render
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.store.record import Record
from tilewright.runtime.store.store import shipped_name
from tilewright.tuner.search.nearest import fitted

pytestmark = pytest.mark.fast

REFITTED = {
    "1000x1000x1000 float nn elementwise": "vec_c 2 -> 4",
    "1024x1024x1024 float nn elementwise": "vec_c 2 -> 4",
    "2048x2048x2048 float nn elementwise": "vec_c 2 -> 4",
    "2048x2048x2048 float nn normwise": "vec_c 2 -> 4",
    "3072x1500x1024 float nn": "shared 1 -> 0",
    "4096x4096x4096 float nn normwise": "vec_c 2 -> 4",
    "5124x700x2048 float nn normwise": "vec_c 2 -> 4",
    "8192x8192x8192 float nn elementwise": "vec_c 2 -> 4",
    "8192x8192x8192 float nn normwise": "vec_c 2 -> 4",
}
"""Records whose config is another one when it is fitted to their own shape, and the parameters that change. A line more
or less comes from a change of `fitted` or of a record, and is to be reviewed."""
DIGEST_REMEDY = (
    "the configs of these records render to another text than was verified: verify it on their device, or compare its "
    "machine code with that of the text before, then run `python benchmarks/sign_records.py configs/tuned`"
)
"""Remedy where a template was meant to change."""


def test_each_has_the_name_of_its_product() -> None:
    assert [
        name for name, record in shipped().items() if name != f"{record.device}/{shipped_name(record.problem)}"
    ] == []


def test_each_renders_to_the_text_whose_digest_it_carries() -> None:
    def digest(record: Record) -> str:
        return render(record.problem, record.config, KNOWN[record.device].arch).digest

    assert [name for name, record in shipped().items() if digest(record) != record.digest] == [], DIGEST_REMEDY


def test_each_but_those_listed_stays_the_same_when_it_is_fitted_to_its_own_shape() -> None:
    refitted = {}
    for record in shipped().values():
        config = fitted(record.config, record.problem, KNOWN[record.device].arch, (record.config.edge, Edge.BOUNDS))
        if config != record.config:
            refitted[str(record.problem)] = "no config" if config is None else differences(record.config, config)
    assert refitted == REFITTED


def differences(before: Config, after: Config) -> str:
    """The parameters in which two configs of a family differ, in text."""
    pairs = zip(before.values, after.values, strict=True)
    return ", ".join(f"{name} {one} -> {other}" for (name, one), (_, other) in pairs if one != other)
