"""Searches by Optuna's models, and the journal file a search resumes from. The only module with Optuna in it.

A model works on a study in memory whose parameters are encoded as the model likes them; the journal on disk
holds names and values as a person knows them. So the model can change without making old files unreadable.
"""

import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from filelock import FileLock
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.trial import TrialState, create_trial

from ...codegen.errors import ConfigError, StoreError
from .gaussian import GaussianSampler
from .parzen import Densities, improvements
from .sampler import START, BaseSampler, Trials
from .space import Mask, Point, Space

__all__ = ["GPSampler", "Journal", "TPESampler"]

GOOD, GOOD_AT_MOST = 0.25, 25
"""Share of the outcomes that TPE takes for good, and how many at most."""

HELPED = 4
"""One in so many suggestions of TPE is a Gaussian process's, twice as often for each STALE outcomes without a new best:
TPE alone may stay on a hill that is not the highest."""

STALE = 12
"""Outcomes without a new best after which the steps around the best grow."""

STUCK = 24
"""Outcomes without a new best after which a third of the search goes elsewhere."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna reports every new study on standard error; nobody asked."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _study_in_memory(sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    """A study whose first trial waits for ever: the one that a sampler is asked for."""
    with _quiet():
        study = optuna.create_study(sampler=sampler)
        study.enqueue_trial({})
    return study


class _ModelSampler(BaseSampler):
    """Asks an Optuna sampler, which chooses among listed candidates: unseen valid points.

    Optuna draws its own candidates from the whole box of parameters; most of them break a constraint or were
    seen. Listing the candidates for it keeps its model and its score and drops that waste.
    """

    most = 4096
    """Candidates to score at a time, at most: a random choice of the unseen points where there are more."""
    first = START
    """Points spread over the space before the model is asked."""

    def __init__(self, space: Space, seed: int, sampler: optuna.samplers.BaseSampler) -> None:
        super().__init__(space, seed)
        self.rows = np.arange(0)  # of the candidates
        self._distributions = {d.name: self.encoding(len(d.choices), d.ordered) for d in space.dimensions}
        self._model_space = {name: d for name, d in self._distributions.items() if not d.single()}
        self._study = _study_in_memory(sampler)
        self._numbers: dict[Point, int] = {}
        self._failed: list[Point] = []
        self._worst: float | None = None
        self._steps = self._since_best = 0

    def encoding(self, size: int, ordered: bool) -> BaseDistribution:
        """How the model sees a parameter of `size` choices."""
        raise NotImplementedError

    def ask(self) -> Point | None:
        point = super().ask()
        if point is not None and point not in self._numbers:
            self._numbers[point] = self._add(point, TrialState.RUNNING)
        return point

    def choose(self) -> Point:
        best = self._best()
        if best is None or len(self.pending) + len(self._history) < self.first:
            return self.spread()
        self._steps += 1
        local = self._steps % 2 == 0
        study, allowed = self._study, self.unseen
        reach = None if self._since_best >= STALE else 1
        if self._since_best >= STUCK:
            # In turn: near the best, anywhere, near the best of elsewhere. Looking for a third hill while the
            # second is still being climbed takes steps from both.
            local = self._steps % 3 != 1
            if self._steps % 3 == 2:
                study, best, allowed = self._elsewhere(best)
                reach = 1
        if local:
            # Tile shapes are good in pairs (a wider tile with more threads), so a step changes up to two.
            allowed = self.space.around(best, 2, reach) & self.unseen
        self.rows = np.flatnonzero(allowed if allowed.any() else self.unseen)
        if self.rows.size > self.most:
            self.rows = self.random.choice(self.rows, self.most, replace=False)
        # The sampler itself is asked, for the trial that waits: `study.ask` compares and copies all the others.
        params = study.sampler.sample_relative(study, study.get_trials(deepcopy=False)[0], self._model_space)
        point = tuple(int(params.get(d.name, 0)) for d in self.space.dimensions)
        if point in self.space and self.unseen[self.space.index(point)]:
            return point
        nearest = self.space.nearest(point, self.unseen)
        assert nearest is not None
        return nearest

    def _elsewhere(self, best: Point) -> tuple[optuna.Study, Point, Mask]:
        """A study of what was tried far from the best point, the best of that, and the unseen points there.

        A search that finds nothing better may sit on the wrong hill, with a model that knows no other; what is
        tried elsewhere then has to be compared with its own kind.
        """
        varied = sum(len(d.choices) > 1 for d in self.space.dimensions)
        far = ~self.space.around(best, varied // 2)
        known = [(point, t) for point, t in self._history if t is not None and far[self.space.index(point)]]
        if len(known) < START // 2 or not (far & self.unseen).any():
            return self._study, best, self.unseen
        study = _study_in_memory(self._study.sampler)
        study.add_trials([self._trial(point, TrialState.COMPLETE, math.log(t)) for point, t in known])
        study.add_trials([self._trial(point, TrialState.RUNNING) for point in self.pending])
        return study, min(known, key=lambda pair: pair[1])[0], far & self.unseen

    def learn(self, point: Point, time_us: float | None) -> None:
        if time_us is None:
            self._failed.append(point)
        else:
            value = math.log(time_us)
            self._worst = value if self._worst is None else max(value, self._worst)
            self._finish(point, value)
        self._since_best = 0 if point == self._best() else self._since_best + 1
        # A failure is as bad as the worst time seen: the model turns away without being bent by an outlier.
        if self._worst is not None:
            for failed in self._failed:
                self._finish(failed, self._worst)
            self._failed.clear()

    def _finish(self, point: Point, value: float) -> None:
        number = self._numbers.pop(point, None)
        if number is None:
            self._add(point, TrialState.COMPLETE, value)
        else:
            self._study.tell(number, value)

    def _add(self, point: Point, state: TrialState, value: float | None = None) -> int:
        self._study.add_trial(self._trial(point, state, value))
        return len(self._study.get_trials(deepcopy=False)) - 1

    def _trial(self, point: Point, state: TrialState, value: float | None = None) -> optuna.trial.FrozenTrial:
        params = {d.name: position for d, position in zip(self.space.dimensions, point, strict=True)}
        return create_trial(state=state, params=params, distributions=self._distributions, value=value)

    def _best(self) -> Point | None:
        """The fastest point so far."""
        return min(((t, point) for point, t in self._history if t is not None), default=(0.0, None))[1]


class TPESampler(_ModelSampler):
    """Optuna's tree-structured Parzen estimator over words, whose good points count by how much they improve.

    Optuna's count alike, the best no more than the last. At least one suggestion in HELPED is a Gaussian process's.
    """

    first = 15

    def __init__(self, space: Space, seed: int) -> None:
        outer, densities = self, Densities(space)

        class Estimator(_ParzenEstimator):  # type: ignore[misc]
            """Optuna's estimator, whose samples are the listed candidates."""

            def sample(self, rng: np.random.RandomState, size: int) -> dict[str, NDArray[Any]]:
                columns = zip(outer.space.dimensions, outer.space.matrix[outer.rows].T.astype(float), strict=True)
                return {d.name: column for d, column in columns if d.name in self._search_space}

            def log_pdf(self, samples_dict: dict[str, NDArray[Any]]) -> NDArray[Any]:
                mixture = self._mixture_distribution
                kernels = (distribution.weights for distribution in mixture.distributions)
                of_names = dict(zip(self._search_space, kernels, strict=True))
                return densities.log_density(outer.rows, mixture.weights, of_names)

        class Weighted(optuna.samplers.TPESampler):  # type: ignore[misc]
            """Optuna's sampler, with weights for the good points."""

            def _build_parzen_estimator(
                self, study: optuna.Study, search_space: dict[str, Any], trials: list[Any], handle_below: bool
            ) -> _ParzenEstimator:
                if not handle_below:
                    return super()._build_parzen_estimator(study, search_space, trials, handle_below)
                told = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
                others = sorted(trial.value for trial in told)[len(trials) :]
                weights = improvements([trial.value for trial in trials], others)
                observed = self._get_internal_repr(trials, search_space, study)
                return Estimator(observed, search_space, self._parzen_estimator_parameters, weights)

        sampler = Weighted(n_startup_trials=1, seed=seed)
        sampler._parzen_estimator_cls = Estimator
        sampler._gamma = lambda trials: min(math.ceil(GOOD * trials), GOOD_AT_MOST)
        super().__init__(space, seed, sampler)
        self._process = GaussianSampler(space, seed)
        self._process.follow(self)
        self._turns = 0

    def choose(self) -> Point:
        self._turns += 1
        modelled = len(self.pending) + len(self._history) >= self.first
        every = max(1, HELPED >> self._since_best // STALE)
        return self._process.choose() if modelled and self._turns % every == 0 else super().choose()

    def encoding(self, size: int, ordered: bool) -> BaseDistribution:
        return CategoricalDistribution(range(size))


class GPSampler(_ModelSampler):
    """Optuna's Gaussian process over positions; needs torch."""

    def __init__(self, space: Space, seed: int) -> None:
        try:
            import torch
        except ImportError as error:
            raise ConfigError("the sampler optuna-gp needs torch and scipy: pip install torch scipy") from error
        torch.set_num_threads(1)  # its matrices are small: more threads only wait for each other
        outer = self

        class Process(optuna.samplers.GPSampler):  # type: ignore[misc]
            names: tuple[str, ...] = ()

            def sample_relative(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
                self.names = tuple(search_space)
                return super().sample_relative(study, trial, search_space)  # type: ignore[no-any-return]

            def _optimize_acqf(self, acqf: Any, best_params: Any) -> NDArray[np.float64]:
                columns = []
                for name in self.names:
                    place = next(i for i, d in enumerate(outer.space.dimensions) if d.name == name)
                    dimension = outer.space.dimensions[place]
                    column = outer.space.matrix[outer.rows, place].astype(float)
                    columns.append((column + 0.5) / len(dimension.choices) if dimension.ordered else column)
                rows = np.stack(columns, axis=1)
                score = np.concatenate([acqf.eval_acqf_no_grad(rows[i : i + 1024]) for i in range(0, len(rows), 1024)])
                chosen: NDArray[np.float64] = rows[int(np.argmax(score))]
                return chosen

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = Process(n_startup_trials=1, seed=seed, warn_independent_sampling=False)
        super().__init__(space, seed, sampler)

    def encoding(self, size: int, ordered: bool) -> BaseDistribution:
        return IntDistribution(0, size - 1) if ordered else CategoricalDistribution(range(size))


class _FileLock(BaseJournalFileLock):  # type: ignore[misc]
    """A lock that the system takes back when its holder is killed; Optuna's own would be waited for."""

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(str(path) + ".flock")

    def acquire(self) -> bool:
        self._lock.acquire()
        return True

    def release(self) -> None:
        self._lock.release()


class Journal:
    """A study on disk: one line for each outcome, written and synced before `add` returns."""

    def __init__(self, path: Path, space: Space, name: str) -> None:
        self.space = space
        self._distributions = {d.name: CategoricalDistribution(d.choices) for d in space.dimensions}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = _FileLock(path)
            lock.acquire()
            try:
                _drop_torn_line(path)
            finally:
                lock.release()
            storage = JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
            sampler = optuna.samplers.RandomSampler()
            with _quiet():
                self._study = optuna.create_study(
                    study_name=name, storage=storage, sampler=sampler, load_if_exists=True
                )
        except OSError as error:
            raise StoreError(f"cannot open the study {path}: {error}") from error

    @property
    def history(self) -> Trials:
        """Outcomes in the order they came; those whose values this space does not offer are left out."""
        found: dict[Point, float | None] = {}
        for trial in self._study.get_trials(deepcopy=False):
            try:
                point = self.space.point_of(trial.params)
            except ConfigError:
                continue
            if trial.state.is_finished() and point in self.space:
                found.setdefault(point, trial.value if trial.state == TrialState.COMPLETE else None)
        return tuple(found.items())

    def add(self, point: Point, time_us: float | None, started: datetime, status: str, reason: str) -> None:
        """Keep one outcome; the objective that a person sees is the time in microseconds."""
        attributes = {name: text for name, text in (("status", status), ("reason", reason)) if text}
        trial = create_trial(
            state=TrialState.FAIL if time_us is None else TrialState.COMPLETE,
            params=dict(self.space.values(point)),
            distributions=self._distributions,
            value=time_us,
            user_attrs=attributes,
        )
        trial.datetime_start = started
        try:
            self._study.add_trial(trial)
        except OSError as error:
            raise StoreError(f"cannot write the study: {error}") from error


def _drop_torn_line(path: Path) -> None:
    """Cut off what a killed process left of its last line, so that the next line starts on its own."""
    if not path.exists():
        return
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        os.truncate(path, whole)
