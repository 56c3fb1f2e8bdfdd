"""Records that ship: their lines, the text that each stands for, and how each serves its own shape."""

from collections import Counter
from importlib import resources

import pytest
from stored import shipped
from tilewright import configs
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.legality import serves
from tilewright.codegen.render import render
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.store.codec import beginning_of, line_of, of_line
from tilewright.runtime.store.record import Record
from tilewright.runtime.store.store import SHIPPED
from tilewright.tuner.choose.choice import carried

pytestmark = pytest.mark.fast

CHANGED = {
    ("nvidia-h100-80gb-hbm3", "shared 1 -> 0"): 13,
    ("nvidia-h100-80gb-hbm3", "pack_a 1 -> 0, shared 1 -> 0"): 1,
    ("nvidia-h200", "shared 1 -> 0"): 1,
}
"""Number of records whose config changes when it is carried to their own shape, by device and change. `carried` resets
`shared` where rows of C are multiples of 32 bytes, and `pack_a` where copies are as wide without it. Another number
comes from a change of `carried` or of a record, and has to be reviewed."""
DIGEST_REMEDY = (
    "the configs of these records render to another text than was verified: verify it on their device, or compare its "
    "machine code with that of the text before, then run `python benchmarks/ship_records.py sign configs/tuned`"
)
"""Remedy where the change of a template was intended."""


def test_each_is_a_line_of_its_device_that_begins_with_its_problem() -> None:
    files = [*(resources.files(configs) / "tuned").iterdir()]
    lines = [(file.name, line) for file in files for line in file.read_bytes().splitlines()]
    assert len(lines) == len(shipped())  # none twice
    for name, line in lines:
        record = of_line(line)
        assert name == f"{record.device}{SHIPPED}"
        assert line.startswith(beginning_of(record.problem))
        assert line + b"\n" == line_of(record)


def test_each_renders_to_the_text_whose_digest_it_carries() -> None:
    def digest(record: Record) -> str:
        return render(record.problem, record.config, KNOWN[record.device]).digest

    assert [name for name, record in shipped().items() if digest(record) != record.digest] == [], DIGEST_REMEDY


def test_each_config_serves_its_own_shape_and_is_what_its_text_names() -> None:
    for name, record in shipped().items():
        assert serves(record.config, record.problem, KNOWN[record.device]), name
        assert parse(str(record.config)) == record.config, name


def test_each_config_but_those_counted_stays_when_it_is_carried_to_its_own_shape() -> None:
    changed = Counter[tuple[str, str]]()
    for record in shipped().values():
        config = carried(record.config, record.problem, KNOWN[record.device])
        if config != record.config:
            changed[record.device, "no config" if config is None else differences(record.config, config)] += 1
    assert changed == CHANGED


def differences(before: Config, after: Config) -> str:
    """The parameters in which two configs of a family differ, in text."""
    pairs = zip(before.values, after.values, strict=True)
    return ", ".join(f"{name} {one} -> {other}" for (name, one), (_, other) in pairs if one != other)
