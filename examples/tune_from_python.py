"""Tuning from Python: `python examples/tune_from_python.py`. Four variants of a small product, kept in a store."""

import tempfile
from pathlib import Path

import tilewright


def main(store: Path) -> None:
    result = tilewright.tune("64x48x32", trials=4, seconds=20, store=store)
    for contender in result.contenders:
        name = contender.config or "the vendor's library"
        print(f"{contender.measurement.median_us:10.2f} us  {name}")
    print(f"the winner on {result.device.name} is {result.best.config}")

    kernel = tilewright.load("64x48x32", store=store)
    print(f"loaded from the store: {kernel.config}, {kernel.origin}")


if __name__ == "__main__":
    # Worker processes import the package, not this file, so the usual guard is only good manners.
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
