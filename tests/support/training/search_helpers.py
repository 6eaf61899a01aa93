"""Candidates of a search, its data, and workers that train nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from threading import Event

import numpy as np

from stablernn.data import ClassificationData, SequenceSplit
from stablernn.training.search.candidates import Candidate, Recipe, RecommendedLength
from stablernn.training.search.trial import Trial, TrialResult
from stablernn.training.settings.load import validate

MARK = 999.0
"""A value that only test sequences have."""


def sequences(count: int = 30, test: int = 10, *, length: int = 12) -> ClassificationData:
    def split(first: int, last: int, value: float) -> SequenceSplit:
        numbers = np.arange(first, last)
        x = np.full((last - first, length, 1), value, np.float32)
        return SequenceSplit(x, np.full(len(numbers), length), numbers % 3, tuple(map(str, numbers)))

    parts = split(0, count - 6, 1.0), split(count - 6, count, 2.0), split(0, test, MARK)
    return ClassificationData("toy", ("a", "b", "c"), ("x",), *parts, {}, "sha256:0")


def candidate(
    name: str,
    proof: str,
    scores: list[float],
    ties: list[float] | None = None,
    *,
    steps: int = 500,
    closed_form: bool = False,
) -> Candidate:
    training = {"method": "closed-form"} if closed_form else {}
    config = validate({"data": {"source": "toy"}, "model": {"cell": "lru"}, "training": training})
    made = Candidate(Recipe(name, {}, ""), config, proof, RecommendedLength(steps, 0, 0))
    for part, score in enumerate(scores):
        trial, tie = Trial(0, config, part), None if ties is None else ties[part]
        made.results[part] = TrialResult(trial, "done", score=score, metric="accuracy", tie=tie)
    return made


class ScoringWorkers:
    """Workers that train nothing.

    Args:
        scores: Score of each recipe on every part, by its number; .8 for others.
        step_seconds: Seconds of a step.
        start: Seconds of the start of a process.
        baseline: Score of the baseline on every part.
        failures: Trials that fail, by the number of the recipe, the draw and the part.
        stop: Set when as many trials have been run as ``stop_after``.
        stop_after: See ``stop``.

    Attributes:
        trials: Trials so far.
    """

    count = 1

    def __init__(
        self,
        scores: Mapping[int, float] | None = None,
        *,
        step_seconds: float = 0.0,
        start: float = 0.1,
        baseline: float = 0.4,
        failures: Collection[tuple[int, int, int]] = (),
        stop: Event | None = None,
        stop_after: int = 0,
    ) -> None:
        self.trials: list[Trial] = []
        self._scores = scores or {}
        self._step_seconds = step_seconds
        self._start, self._baseline = start, baseline
        self._failures = failures
        self._stop, self._stop_after = stop, stop_after

    def start_seconds(self) -> float:
        return self._start

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        for trial in trials:
            if self._stop is not None and len(self.trials) == self._stop_after:
                self._stop.set()
                return
            self.trials.append(trial)
            if (trial.recipe, trial.draw, trial.part) in self._failures:
                yield TrialResult(trial, "failed", reason="of the test")
                continue
            if trial.recipe is None:
                yield TrialResult(trial, "done", scores={"majority": {"accuracy": self._baseline}}, seconds=0.1)
                continue
            yield TrialResult(
                trial,
                "stopped" if trial.most_steps else "done",
                score=self._scores.get(trial.recipe, 0.8),
                metric=trial.metric or "",
                tie=0.5,
                steps=0 if trial.config.training.method == "closed-form" else round(500 * trial.share),
                seconds=0.1,
                step_seconds=self._step_seconds,
                scores={"accuracy": 0.8},
            )
