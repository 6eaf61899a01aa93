"""Models of other libraries, scored beside the contenders: classifiers of aeon, forecasters of statsforecast.

Both are in the extra ``compare``. They are fitted to the training and the validation part together: they use no
validation to stop by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Samples
from stablernn.data.step_data import Data
from stablernn.data.types import ClassificationData, ForecastData
from stablernn.errors import ConfigError
from stablernn.training.evaluation.scorers import ForecastScorer
from stablernn.training.run_data import load_run_data
from stablernn.training.settings.config import Config

Baseline = Literal["minirocket", "multirocket-hydra", "1nn-dtw", "autoets", "autotheta"]
BASELINES: tuple[Baseline, ...] = get_args(Baseline)
_FORECASTERS = ("autoets", "autotheta")
Array = npt.NDArray[Any]


def baselines_of(names: Sequence[str]) -> list[Baseline]:
    """Return baselines by their names, if their libraries are installed.

    Raises:
        ConfigError: If there is no such baseline, or its library is missing.
    """
    baselines: list[Baseline] = []
    for name in names:
        if name not in BASELINES:
            raise ConfigError(f"There is no baseline '{name}'. Allowed are {', '.join(BASELINES)}.")
        library = "statsforecast" if name in _FORECASTERS else "aeon"
        try:
            __import__(library)
        except ModuleNotFoundError:
            raise ConfigError(
                f"The baseline '{name}' needs {library}. Install it with pip install -e '.[compare]' in the checkout, "
                "or leave --baselines out."
            ) from None
        baselines.append(name)
    return baselines


def check_baseline(baseline: Baseline, data: Data) -> None:
    """Refuse a baseline that is for another task, or cannot be scored on data.

    Raises:
        ConfigError: If that is so.
    """
    kind = ForecastData if baseline in _FORECASTERS else ClassificationData
    if not isinstance(data, kind):
        raise ConfigError(
            f"The baseline '{baseline}' is not for the task '{data.task}' of '{data.name}'. Leave it out."
        )
    if isinstance(data, ClassificationData) and not data.test:
        raise ConfigError(f"'{data.name}' has no test split to score '{baseline}' on. Give one with data.test.")


def score_baseline(baseline: Baseline, config: Config, seeds: Sequence[int]) -> dict[str, Any]:
    """Fit a baseline and score it on the test split.

    Args:
        baseline: The baseline.
        config: Settings with the data.
        seeds: Seeds of a classifier that draws random numbers; its scores are means over them.

    Returns:
        ``scores``, by metric, and ``cpu_seconds`` of one fit with its predictions.
    """
    data = load_run_data(config)
    if isinstance(data, ForecastData):
        return _score_forecaster(baseline, data)
    assert isinstance(data, ClassificationData)
    began = time.process_time()
    runs = [_accuracy(_CLASSIFIERS[baseline](seed), data) for seed in seeds]
    return {
        "scores": {"accuracy": float(np.mean(runs))},
        "seeds": len(runs),
        "cpu_seconds": round((time.process_time() - began) / len(runs), 3),
    }


def _minirocket(seed: int) -> Any:
    # Dempster, Schmidt, Webb (KDD 2021).
    from aeon.classification.convolution_based import MiniRocketClassifier  # pyright: ignore[reportMissingImports]

    return MiniRocketClassifier(random_state=seed, n_jobs=1)


def _multirocket_hydra(seed: int) -> Any:
    # Dempster, Schmidt, Webb (Data Mining and Knowledge Discovery 2023).
    from aeon.classification.convolution_based import MultiRocketHydraClassifier  # pyright: ignore[reportMissingImports]

    return MultiRocketHydraClassifier(random_state=seed, n_jobs=1)


def _nearest_neighbor(seed: int) -> Any:
    from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier  # pyright: ignore[reportMissingImports]

    return KNeighborsTimeSeriesClassifier(n_neighbors=1, distance="dtw", distance_params={"window": 0.1}, n_jobs=1)


_CLASSIFIERS: Mapping[str, Callable[[int], Any]] = {
    "minirocket": _minirocket,
    "multirocket-hydra": _multirocket_hydra,
    "1nn-dtw": _nearest_neighbor,
}


def _accuracy(classifier: Any, data: ClassificationData) -> float:
    train, test = data.train.merged(data.validation), data.split("test")
    longest = int(max(train.lengths.max(), test.lengths.max()))
    classifier.fit(cases(train.gather(np.arange(len(train))), longest), train.y)
    predictions = classifier.predict(cases(test.gather(np.arange(len(test))), longest))
    return float(np.mean(predictions == test.y))


def cases(samples: Samples, longest: int) -> Array:
    """Return sequences with zeros for missing values and after their ends, in aeon's axes (cases, channels, time)."""
    x = np.nan_to_num(samples.x)
    padding = longest - x.shape[1]
    padded = np.pad(x, ((0, 0), (0, padding), (0, 0))) if padding > 0 else x[:, :longest]
    return padded.transpose(0, 2, 1).astype(np.float64)


def _score_forecaster(baseline: Baseline, data: ForecastData) -> dict[str, Any]:
    began = time.process_time()
    scorer = ForecastScorer(data, "test")
    ends = np.array(data.windows("test").origins, dtype=np.int64).reshape(-1, 2)[:, 1]
    mean = np.empty(scorer.truth.shape)
    for number, rows in scorer.series_slices():
        values = data.series[number].values
        for position, channel in enumerate(data.target_indices):
            forecasts = _forecasts(_forecaster(baseline, data.season), values[:, channel], ends[rows], data.horizon)
            mean[rows, :, position] = list(forecasts)
    scores = {name: value for name, value in scorer.score({"mean": mean}).items() if not isinstance(value, Mapping)}
    return {"scores": scores, "seeds": 1, "cpu_seconds": round(time.process_time() - began, 3)}


def _forecaster(baseline: Baseline, season: int) -> Any:
    from statsforecast.models import AutoETS, AutoTheta  # pyright: ignore[reportMissingImports]

    return (AutoETS if baseline == "autoets" else AutoTheta)(season_length=season)


def _forecasts(model: Any, values: Array, ends: npt.NDArray[np.int64], horizon: int) -> Iterator[Array]:
    """Yield the forecast at each end, by a model that is selected once, on what comes before the first end."""
    observed = fill_forward(values.astype(np.float64))
    model.fit(observed[: int(ends.min())])
    for end in ends:
        yield model.forward(observed[: int(end)], h=horizon)["mean"]


def fill_forward(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Fill missing values by those before, which a forecast may know; the first ones by the first that is there."""
    is_missing = np.isnan(values)
    if is_missing.all():
        return np.zeros_like(values)
    positions = np.where(is_missing, -1, np.arange(len(values)))
    last = np.maximum.accumulate(positions)
    return values[np.where(last < 0, int(np.argmin(is_missing)), last)]
