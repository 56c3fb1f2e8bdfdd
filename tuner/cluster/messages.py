"""Messages between a client and its workers, as texts of JSON that the client reads as strictly as records.

A worker answers for nothing but its measurements: the client refuses a message that is damaged, foreign or of another
problem with a StoreError, and the message changes nothing.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, cast, get_args

from ...codegen.config import Config
from ...codegen.errors import StoreError, TilewrightError, check
from ...codegen.families import parse
from ...codegen.problem import Problem
from ...runtime.device.protocol import DeviceInfo
from ...runtime.store.codec import decode, packed
from ...runtime.store.record import Status
from ..recording.entry import Entry
from ..result import Result

MOST_CHARACTERS = 4 << 20
"""Characters of the longest message: a result with all samples of its duel has some ten thousand."""
MOST_TRIALS = 10**9
"""Trials that one problem may have."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem for a worker, from the first guess to the duel."""

    topic: str
    """Topic of the worker's messages."""
    number: int
    """Place of the problem among the client's."""
    problem: Problem
    options: dict[str, Any]
    """Arguments of `tune`, names and plain values; configs as text."""
    spaces: dict[str, str]
    """The user's own space files, names and texts: there is no shared file system."""


@dataclass(frozen=True, slots=True)
class Asks:
    """A worker has a problem in hand and asks for its earlier outcomes; the client's answer names the attempt. Raises
    ValueError for a device that cannot be."""

    attempt: str
    number: int
    worker: str
    """Address of the worker."""
    device: DeviceInfo
    versions: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if not self.device.complete:
            raise ValueError("a device that cannot be")


@dataclass(frozen=True, slots=True)
class Begins:
    """A worker begins to try variants. Raises ValueError for impossible counts."""

    attempt: str
    trials: int
    """Most variants that the worker tries, earlier attempts included."""
    resumed: int
    """Outcomes of earlier attempts from which the worker goes on."""

    def __post_init__(self) -> None:
        if not (0 <= self.trials <= MOST_TRIALS and 0 <= self.resumed <= MOST_TRIALS):
            raise ValueError(f"trials and resumed must be in 0..{MOST_TRIALS:,}")


@dataclass(frozen=True, slots=True)
class Tells:
    """A worker tried one variant. Raises ValueError for a variant that cannot be printed and for a malformed time."""

    attempt: str
    variant: str
    """The config as text."""
    entry: Entry
    started: str
    """Time at which the trial started, in ISO format."""

    def __post_init__(self) -> None:
        if not self.variant.isprintable():
            raise ValueError("a trial has a variant")
        datetime.fromisoformat(self.started)

    @property
    def config(self) -> Config:
        """The config that was tried. Raises ConfigError."""
        return parse(self.variant)


@dataclass(frozen=True, slots=True)
class Ends:
    """A worker has the result of its problem. Raises ValueError for a result that contradicts itself."""

    attempt: str
    result: Result

    def __post_init__(self) -> None:
        result, best, contenders = self.result, self.result.best, self.result.contenders
        agrees = (best.problem, best.device, best.status) == (result.problem, result.device.key, Status.OK)
        agrees &= bool(contenders) and contenders[0].config == best.config and any(c.config is None for c in contenders)
        agrees &= result.device.complete and result.seconds > 0 and MOST_TRIALS >= result.trials >= result.resumed >= 0
        if not agrees:
            raise ValueError("a result that does not agree with itself")


@dataclass(frozen=True, slots=True)
class Fails:
    """A worker found no winner."""

    attempt: str
    reason: str
    """Cause, in a line."""


@dataclass(frozen=True, slots=True)
class Loses:
    """The device of a worker does not answer any longer; its problem goes to another worker."""

    attempt: str
    reason: str
    """Cause, in a line."""


Message: TypeAlias = Asks | Begins | Tells | Ends | Fails | Loses
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Message)}


class ClusterProgress:
    """Listener of a run on several workers. This one shows nothing."""

    def workers(self, seats: int) -> None:
        """Called with the number of devices, where it changes."""

    def note(self, text: str) -> None:
        """Called with a notice in a line."""

    def begun(self, problem: Problem, trials: int, resumed: int) -> None:
        """Called when a worker begins a problem."""

    def tried(self, problem: Problem, device_key: str, trial: Tells) -> None:
        """Called after each variant of a problem."""

    def ended(self, result: Result) -> None:
        """Called when a problem is done and its result stored."""

    def failed(self, problem: Problem, reason: str) -> None:
        """Called when a problem has no winner."""


def written(message: Message) -> str:
    """A message as text. Raises StoreError for a number that is not finite."""
    return json.dumps({"kind": type(message).__name__, **packed(message)})


def read(text: object) -> Message:
    """The message that a worker sent. Raises StoreError for anything else, in one line."""
    try:
        check(isinstance(text, str) and len(text) <= MOST_CHARACTERS, "no text, or a longer one than any", StoreError)
        fields = json.loads(cast(str, text))
        kind = fields.pop("kind")
        check(isinstance(kind, str) and kind in _KINDS, f"of no known kind: {kind!r:.40}", StoreError)
        return cast(Message, decode(_KINDS[kind], fields, kind))
    except StoreError:
        raise
    except (TilewrightError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{type(error).__name__}: {error!s:.200}") from error


def device_of(facts: object) -> DeviceInfo:
    """The device of encoded facts. Raises StoreError for anything else."""
    info = cast(DeviceInfo, decode(DeviceInfo, facts, "device"))
    check(info.complete, "a device that cannot be", StoreError)
    return info
