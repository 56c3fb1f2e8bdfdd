"""The workers of a scheduler: their versions, and the models of their devices."""

import contextlib
import json
import time
from collections.abc import Callable

from distributed import Client

from ...codegen.errors import ConfigError
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.versions import generator_version
from .messages import device_of
from .worker import facts, seat_read


def resources(client: Client) -> dict[str, dict[str, float]]:
    """The resources of each worker, by its address. Raises OSError, RuntimeError where the scheduler is gone."""
    return {address: each["resources"] for address, each in client.scheduler_info(n_workers=-1)["workers"].items()}


def model(client: Client, device_key: str, note: Callable[[str], None]) -> DeviceInfo:
    """Facts of the workers' devices, after a wait for a worker; `device_key` is the model, empty for the only one. Each
    notice goes to `note`. Raises ConfigError where there are several models and no key."""
    waited = False
    noted: set[str] = set()
    while True:
        names = [(worker, name) for worker, each in resources(client).items() for name, count in each.items() if count]
        seats = {worker: seat for worker, name in names if (seat := seat_read(name))}
        others = {version for version, _ in seats.values()} - {generator_version()}
        if others - noted:
            noted |= others
            versions = ", ".join(sorted(others))
            note(f"workers of tilewright {versions} get nothing: this is {generator_version()}; install the same there")
        ours = {worker: key for worker, (version, key) in seats.items() if version == generator_version()}
        keys = sorted({*ours.values()})
        if not device_key and len(keys) > 1:
            raise ConfigError(f"the workers have {', '.join(keys)}; name one of them by --device-key")
        worker = next((worker for worker, key in ours.items() if key == (device_key or key)), None)
        if worker is not None:
            with contextlib.suppress(OSError, KeyError):  # the worker is gone
                return device_of(json.loads(client.run(facts, workers=[worker])[worker]))
        elif not waited:
            waited = True
            there = f"there are {', '.join(keys)}" if keys else "there is none yet"
            note(f"waiting for a worker{f' with a {device_key}' if device_key else ''}; {there}")
        time.sleep(0.5)
