"""What a client and its workers tell each other: texts of JSON, and what a worker says is read as strictly as a record.

A worker answers for nothing but its measurements: a message that is damaged, foreign or of another problem is refused
with a StoreError and changes nothing.
"""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, cast, get_type_hints

from ...codegen.arch import arch_named
from ...codegen.config import Config
from ...codegen.errors import ConfigError, StoreError, TilewrightError, check
from ...codegen.families import parse
from ...codegen.problem import Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.codec import decode, encode
from ...runtime.store.record import Status
from ..recording.entry import Entry
from ..result import Result

MOST_CHARACTERS = 4 << 20
"""Of a message: a result with all samples of its duel has some ten thousand."""
_MOST_TRIALS = 10**9
"""Trials that one problem may have."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is asked: one problem, from the first guess to the duel."""

    topic: str
    """Where it answers."""
    number: int
    """Which of the client's problems it is."""
    problem: Problem
    options: tuple[tuple[str, Any], ...]
    """Arguments of `tune`, names and plain values; configs as text."""
    spaces: tuple[tuple[str, str], ...]
    """Space files of the user's own, names and texts: there is no shared file system."""

    def text(self) -> str:
        """As JSON."""
        return json.dumps({**dataclasses.asdict(self), "problem": encode(self.problem)})

    @classmethod
    def read(cls, text: str) -> "Task":
        """Of `text`, which a client made; it may ask a worker for anything anyway."""
        told = json.loads(text)
        options, spaces = (tuple(map(tuple, told[name])) for name in ("options", "spaces"))
        problem = cast(Problem, decode(Problem, told["problem"], "problem"))
        return cls(told["topic"], told["number"], problem, options, spaces)


@dataclass(frozen=True, slots=True)
class Asks:
    """A worker has a problem in hand and wants to know what was tried of it; the client's answer names the attempt."""

    attempt: str
    number: int
    worker: str
    """Its address."""
    device: DeviceInfo
    versions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Begins:
    """A worker begins to try variants."""

    attempt: str
    trials: int
    """It tries at most so many, those of earlier attempts counted."""
    resumed: int
    """Outcomes of earlier attempts that it goes on from."""


@dataclass(frozen=True, slots=True)
class Tells:
    """One variant was tried."""

    attempt: str
    variant: str
    """Its config as text."""
    entry: Entry
    started: str
    """When, in ISO format."""

    @property
    def config(self) -> Config:
        """That config. Raises ConfigError."""
        return parse(self.variant)


@dataclass(frozen=True, slots=True)
class Ends:
    """The problem is done."""

    attempt: str
    result: Result


@dataclass(frozen=True, slots=True)
class Fails:
    """No winner: the reason in a line."""

    attempt: str
    reason: str


@dataclass(frozen=True, slots=True)
class Loses:
    """A worker's device does not answer any longer; its problem goes to another."""

    attempt: str
    reason: str


Message: TypeAlias = Asks | Begins | Tells | Ends | Fails | Loses


class Told:
    """Told what happens to the problems. This one says nothing."""

    def workers(self, seats: int) -> None:
        """How many devices there are by now."""

    def note(self, text: str) -> None:
        """Something to know, in a line."""

    def begun(self, problem: Problem, trials: int, resumed: int) -> None:
        """A worker has it in hand."""

    def tried(self, problem: Problem, device_key: str, told: Tells) -> None:
        """One variant of it."""

    def ended(self, result: Result) -> None:
        """It is done, and kept."""

    def failed(self, problem: Problem, reason: str) -> None:
        """It has no winner."""


def written(message: Message) -> str:
    """A message as text. Raises StoreError for a number that is not finite."""
    fields: dict[str, Any] = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    if isinstance(message, Tells):
        fields["entry"] = message.entry.packed()
    elif isinstance(message, Ends):
        fields["result"] = _packed(message.result)
    elif isinstance(message, Asks):
        fields["device"] = message.device.packed()
    return json.dumps({"kind": type(message).__name__, **fields})


def read(text: object) -> Message:
    """The message that a worker sent. Raises StoreError for anything else, in one line."""
    try:
        check(isinstance(text, str) and len(text) <= MOST_CHARACTERS, "no text, or a longer one than any", StoreError)
        told = json.loads(cast(str, text))
        kind = told.pop("kind")
        check(isinstance(kind, str) and kind in _READERS, f"of no known kind: {kind!r:.40}", StoreError)
        return _READERS[kind](told)
    except StoreError:
        raise
    except (TilewrightError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(f"{type(error).__name__}: {error!s:.200}") from error


def _asks(told: dict[str, Any]) -> Message:
    device = device_of(told.pop("device"))
    return Asks(device=device, **_plain(Asks, told))


def _begins(told: dict[str, Any]) -> Message:
    begins = Begins(**_plain(Begins, told))
    good = 0 <= begins.trials <= _MOST_TRIALS and 0 <= begins.resumed <= _MOST_TRIALS
    check(good, f"trials and resumed must be in 0..{_MOST_TRIALS:,}", StoreError)
    return begins


def _tells(told: dict[str, Any]) -> Message:
    started, variant, attempt = (told[name] for name in ("started", "variant", "attempt"))
    good = type(variant) is type(attempt) is str and variant.isprintable()
    check(good, "a trial has a variant", StoreError)
    datetime.fromisoformat(started)
    return Tells(attempt, variant, Entry.unpacked(told["entry"]), started)


def _ends(told: dict[str, Any]) -> Message:
    return Ends(result=_unpacked(told.pop("result")), **_plain(Ends, told))


def _plain(kind: Any, told: dict[str, Any]) -> dict[str, Any]:
    """The other fields, each of its type."""
    hints = get_type_hints(kind)
    return {name: decode(hints[name], value, name) for name, value in told.items()}


def device_of(facts: Any) -> DeviceInfo:
    """The device of `packed` facts. Raises StoreError, ConfigError for what is none."""
    hints = get_type_hints(DeviceInfo)
    arch = arch_named(facts.pop("arch"))
    given: dict[str, Any] = {name: decode(hints[name], value, f"device.{name}") for name, value in facts.items()}
    info = DeviceInfo(arch=arch, **given)
    counts = info.sm_count, info.memory_bytes, info.clock_mhz, info.bandwidth_gbs
    check(all(each > 0 for each in counts) and bool(info.key), "a device that cannot be", StoreError)
    return info


def _packed(result: Result) -> dict[str, Any]:
    values = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return {name: value.packed() if name == "device" else encode(value) for name, value in values.items()}


def _unpacked(told: dict[str, Any]) -> Result:
    """Raises StoreError and ConfigError for a result that no tuning gave."""
    device, hints = device_of(told.pop("device")), get_type_hints(Result)
    given: dict[str, Any] = {name: decode(hints[name], value, f"result.{name}") for name, value in told.items()}
    result = Result(device=device, **given)
    best, first = result.best, next(iter(result.contenders), None)
    good = (best.problem, best.device, best.status) == (result.problem, device.key, Status.OK)
    good &= first is not None and first.config == best.config and any(c.config is None for c in result.contenders)
    good &= result.seconds > 0 and _MOST_TRIALS >= result.trials >= result.resumed >= 0
    check(good, "a result that does not agree with itself", ConfigError)
    return result


_READERS: dict[str, Callable[[dict[str, Any]], Message]] = {
    "Asks": _asks,
    "Begins": _begins,
    "Tells": _tells,
    "Ends": _ends,
    "Fails": lambda told: Fails(**_plain(Fails, told)),
    "Loses": lambda told: Loses(**_plain(Loses, told)),
}
