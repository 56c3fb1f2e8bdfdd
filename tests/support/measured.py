"""`tilewright` as a program whose processes add each variant that they measured to the file $MEASURED.

After each variant the process rests for $MEASURED_PAUSE_S seconds, because tiny problems take no time. A client or
worker waits $MEASURED_RETURN_S seconds for a scheduler that is gone.
"""

import os
import sys
import time

from tilewright.cli.app import main
from tilewright.codegen.config import Config
from tilewright.tuner.measure import child
from tilewright.tuner.measure.evaluate import Bench, Tried


def install() -> None:
    """In a worker: add a line to the file after each variant."""
    real = Bench.try_variant

    def noted(self: Bench, config: Config, stop_above_us: float = float("inf")) -> Tried:
        tried = real(self, config, stop_above_us)
        file = os.open(os.environ["MEASURED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{self.problem} {config}\n".encode())
        os.close(file)
        time.sleep(float(os.environ.get("MEASURED_PAUSE_S", "0")))
        return tried

    Bench.try_variant = noted  # type: ignore[method-assign]


if __name__ in ("__main__", "__mp_main__"):  # the second in processes that multiprocessing starts, as Dask does
    child._START = child._START.replace("; from", "; import measured; measured.install(); from")
    if "MEASURED_RETURN_S" in os.environ:
        from tilewright.tuner.cluster import client, link

        client.RETURN_S = link.RETURN_S = float(os.environ["MEASURED_RETURN_S"])
if __name__ == "__main__":
    main(sys.argv[1:])
