"""Candidates of a search, its data, and workers that train nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

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
    name: str, proof: str, scores: list[float], ties: list[float] | None = None, *, steps: int = 500
) -> Candidate:
    config = validate({"data": {"source": "toy"}, "model": {"cell": "lru"}})
    found = Candidate(Recipe(name, {}, ""), config, proof, RecommendedLength(steps, 0, 0))
    for part, score in enumerate(scores):
        trial, tie = Trial(0, config, part, len(scores)), None if ties is None else ties[part]
        found.results[part] = TrialResult(trial, "done", score=score, metric="accuracy", tie=tie)
    return found


class ScoringWorkers:
    """Workers that train nothing: networks score .8 and the baseline .9, on every part.

    Args:
        whole_steps: Optimizer steps of a network.
        step_seconds: Seconds of a step.
        slowdown: Factor of these while recipes are compared, as where other work begins.
        statuses: Statuses of trials that are not done, by the number of the recipe, the draw and the part.
    """

    count = 1

    def __init__(
        self,
        whole_steps: int,
        *,
        step_seconds: float = 0.0,
        slowdown: float = 1.0,
        statuses: Mapping[tuple[int, int, int], Literal["out of time", "failed"]] | None = None,
    ) -> None:
        self._whole_steps = whole_steps
        self._step_seconds = step_seconds
        self._slowdown = slowdown
        self._statuses = statuses or {}

    def run(
        self, trials: Sequence[Trial], deadline: float | None, most_seconds: float | None = None
    ) -> Iterator[TrialResult]:
        for trial in trials:
            is_baseline = trial.config.training.method == "closed-form"
            score, whole_steps = (0.9, 0) if is_baseline else (0.8, self._whole_steps)
            if status := self._statuses.get((trial.recipe, trial.draw, trial.part)):
                yield TrialResult(trial, status, reason="of the test")
                continue
            yield TrialResult(
                trial,
                "done",
                score=score,
                metric="accuracy",
                tie=0.5,
                steps=round(whole_steps * trial.share),
                whole_steps=whole_steps,
                seconds=self._step_seconds * whole_steps * trial.share,
                step_seconds=self._step_seconds * (1.0 if trial.most_steps else self._slowdown),
            )
