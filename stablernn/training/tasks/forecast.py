"""The task 'forecast': the next steps of series, with quantiles."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from stablernn.cells import StableCell, cell_info
from stablernn.data.arrays import Samples, SplitName, cut_samples
from stablernn.data.forecasting import calendar_channels, calendar_periods
from stablernn.data.options import LoadOptions
from stablernn.data.types import ForecastData, LinearForecast
from stablernn.data.windows import batch_evenly_spaced
from stablernn.errors import ConfigError
from stablernn.nn.models import Forecaster, SequenceModel
from stablernn.terms import terms
from stablernn.training.calibration import Conformal, conformal_offsets, conformity_scores, fit_offsets
from stablernn.training.evaluation.backtest import backtest, check_soak, soak, stream_report
from stablernn.training.evaluation.metrics import seasonal_scale, symmetric_levels
from stablernn.training.evaluation.predictors import BATCH_SIZE, Outputs, predict
from stablernn.training.evaluation.scorers import (
    ForecastScorer,
    PredictorNames,
    Scores,
    Subset,
    by_series,
    by_step,
    open_forecast,
    write_tables,
)
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop.closed_form import Solution, fit_forecast_head
from stablernn.training.loop.linear_forecast import (
    FIXED,
    FOLDS,
    choose_linear_forecast,
    confirmed_seasons,
    fit_forecaster,
    gate,
    is_non_negative,
    stretches_of_time,
)
from stablernn.training.loop.losses import ForecastObjective, Objective
from stablernn.training.loop.minibatches import Minibatches, SampleMinibatches
from stablernn.training.plots import WindowChoice, draw_forecast, draw_last_window, select_window, series_figure
from stablernn.training.settings.config import Config, ModelConfig, TaskConfig, TrainingConfig
from stablernn.training.settings.defaults import (
    CLOSED_FORM,
    SKIP_SETTINGS,
    ModelDefaults,
    TrainingDefaults,
    calibrates,
    fill_model_settings,
    fill_scaling_settings,
    power_of_two,
)
from stablernn.training.tasks.task import (
    MAX_EXAMPLE_VALUES,
    FinalScores,
    SampleErrors,
    ScoreExtras,
    SplitScores,
    Task,
    example_series,
    example_values,
    network_options,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTILES = (0.1, 0.5, 0.9)
"""Levels of a forecast's quantiles: the median and a central interval of 80 %."""
PATCHES = 14
"""Recurrent steps that a context is divided into by default."""
MIN_STEPS, MAX_STEPS = 300, 2000
"""Bounds of the optimizer steps of a training; between them it takes five epochs."""
MOST_WINDOWS_A_STEP = 256
_EPOCHS = 5
_LOWEST_WINDOWS = 2000
"""Training windows that tell how far forecasts of data without negative values may fall."""
_SKIP_LR_DIVISOR = 30
"""The linear skip starts from the solution of ridge regression, from which it should not move far."""


class ForecastTask(Task):
    """Forecasts of series.

    Args:
        data: Series on a time grid.
    """

    # Rows of a table are steps where the cell takes no time; notes count the intervals that differ.
    has_optional_time = True
    sample_noun = "windows"
    figures = ("forecast",)
    data: ForecastData  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, data: ForecastData) -> None:
        super().__init__(data)
        self._scorers: dict[tuple[str, tuple[float, ...]], ForecastScorer] = {}

    def example(self) -> dict[str, Any] | None:
        """Return the last window of the split."""
        data = self.data
        name: SplitName = "test" if len(data.windows("test")) else "validation"
        windows = data.windows(name)
        if not len(windows):
            return None
        samples, (series, end) = windows.gather([len(windows) - 1]), windows.origin(len(windows) - 1)
        # The server computes the features of the calendar from the time.
        calendar = calendar_channels(data.calendar)
        observed = [position for position, channel in enumerate(data.channels) if channel not in calendar]
        x = samples.x[0][:, observed]
        if x.size > MAX_EXAMPLE_VALUES:
            return None
        request: dict[str, Any] = {"series": example_series(x)}
        ds = data.series[series].ds
        if data.frequency is not None and ds.dtype.kind == "M":
            request["start_timestamp"] = f"{np.datetime_as_string(ds[end - data.context_length], unit='ms')}Z"
        if samples.dt is not None:
            request["dt"] = example_values(samples.dt[0])
        if samples.static is not None:
            request["static"] = dict(zip(data.static, example_values(samples.static[0]), strict=True))
        known = zip(data.future, () if samples.future is None else samples.future[0].T, strict=False)
        if future := {channel: example_values(values) for channel, values in known if channel not in calendar}:
            request["future"] = future
        return {"split": name, "input": request, "actual": example_values(np.asarray(samples.y[0], np.float32).T)}

    def task_settings(self, config: Config) -> TaskConfig:
        data = self.data
        return config.task.model_copy(
            update={
                "name": data.task,
                "horizon": data.horizon,
                "context_length": data.context_length,
                "season": data.season,
                "quantiles": QUANTILES if config.task.quantiles is None else config.task.quantiles,
            }
        )

    def model_settings(self, config: Config, cell: StableCell) -> ModelConfig:
        model = config.model if not cell.is_forecast else self._forecasting_cell(config.model)
        defaults = ModelDefaults() if model.preset == "paper" else self._model_defaults(model)
        filled = fill_model_settings(model, defaults, cell)
        # Data that nothing was chosen for are taken as they are.
        linear = self.data.linear or LinearForecast(self.data.context_length)
        filled = fill_scaling_settings(
            model, filled, window=self.data.context_length, season=self._season(model), log=linear.log
        )
        if filled.non_negative is None:
            # Forecasts by logarithms are positive anyway.
            has_logarithms = filled.log or filled.scaling == "log"
            is_cut = model.preset == "practical" and filled.head == "direct" and not has_logarithms
            filled = filled.model_copy(update={"non_negative": is_cut and is_non_negative(self.data)})
        if filled.skip != "linear":
            return filled
        settings = {f"skip_{key}": value for key, value in vars(linear).items()}
        filled = filled.model_copy(update={key: settings[key] for key in SKIP_SETTINGS if getattr(model, key) is None})
        _check_skip_lags(filled)
        return filled

    def _forecasting_cell(self, model: ModelConfig) -> ModelConfig:
        """Return the settings of a cell whose output is the forecast.

        Raises:
            ConfigError: If others are set.
        """
        fixed: dict[str, Any] = {"hidden_size": self.data.horizon, "patch_size": 1, "patch_embedding": 0}
        fixed |= {"patch_stride": 1, "head": "direct", "skip": "none", "readout": "last", "num_layers": 1}
        if model.scaling not in ("none", "log"):
            fixed["scaling"] = "standard"
        for key, value in fixed.items():
            if key in model.model_fields_set and getattr(model, key) not in (None, value):
                raise ConfigError(
                    f"The output of the cell '{model.cell}' is a forecast, so that model.{key} is {value!r}, "
                    f"got {getattr(model, key)!r}; leave it out."
                )
        options = {"season": smoothing_season(self.data), **model.cell_options}
        return model.model_copy(update={**fixed, "cell_options": options})

    def _model_defaults(self, model: ModelConfig) -> ModelDefaults:
        # A recursive head makes one sample at a time; scaling by the context needs a season and one to compare it with.
        is_recursive = model.head == "recursive"
        fits = self._window(model) >= 2 * self._season(model)
        # A linear map of the context is hard to beat on many series.
        has_skip = fits and not is_recursive and model.scaling in (None, "context")
        return ModelDefaults(
            patch_size=1 if is_recursive else _patch_size(self.data.context_length),
            scaling="context" if fits and not is_recursive else "standard",
            skip="linear" if has_skip else "none",
        )

    def _season(self, model: ModelConfig) -> int:
        if model.season is not None:
            return model.season
        return self.data.season if 2 * self.data.season <= self._window(model) else 1

    def _window(self, model: ModelConfig) -> int:
        return model.window or self.data.context_length

    def training_defaults(self, config: Config, defaults: TrainingDefaults) -> TrainingDefaults:
        """Return larger batches and fewer epochs for many windows.

        A cell's recommendations are for some thousand samples. Overlapping windows come by the ten thousand and differ
        little, so that not all of them are needed.
        """
        if config.model.preset == "paper":
            return defaults
        samples = len(self.data.windows("train"))
        batch = min(MOST_WINDOWS_A_STEP, max(defaults.batch_size, power_of_two(samples / 32)))
        steps = math.ceil(samples / (config.training.batch_size or batch))
        num_steps = min(max(_EPOCHS * steps, MIN_STEPS), MAX_STEPS)
        return replace(defaults, batch_size=batch, epochs=max(1, round(num_steps / steps)))

    def training_settings(self, config: Config, model: ModelConfig, defaults: TrainingDefaults) -> TrainingDefaults:
        lr = config.training.lr or defaults.lr
        assert lr is not None
        return replace(
            defaults,
            warm_up=self._warm_up(config, model),
            skip_lr=lr / _SKIP_LR_DIVISOR if model.skip == "linear" else None,
            calibrate=self._calibrates(config),
        )

    def _warm_up(self, config: Config, model: ModelConfig) -> int:
        warm_up, stride = config.training.warm_up, model.patch_stride
        assert stride is not None
        if warm_up and warm_up < stride:
            raise ConfigError(
                f"training.warm_up makes contexts longer by whole patches, of model.patch_stride={stride} steps, got "
                f"{warm_up}; set it to {stride} or more, or to 0."
            )
        # A stream is longer than a context; its state must be one that training has seen.
        context = self.data.context_length
        return context if config.model.preset == "practical" and context >= stride else 0

    def _calibrates(self, config: Config) -> bool:
        # None stands for levels that are recommended, which are symmetric.
        levels = config.task.quantiles
        missing = None
        if levels == ():
            missing = "quantiles"
        elif not len(self.data.windows("validation")):
            missing = "a validation split"
        elif levels is not None and not symmetric_levels(levels):
            if config.training.calibrate:
                raise ConfigError(
                    "training.calibrate moves two quantiles at once whose levels add up to 1, such as 0.1 and 0.9, "
                    f"and {terms().setting('task.quantiles', list(levels))} has no such two; name both, or leave it "
                    "out."
                )
            return False
        return calibrates(config, self.data.name, missing)

    def choose_inputs(self, config: Config) -> ForecastData:
        if cell_info(config.model.cell).cell.is_forecast:
            if not self.data.has_default_context:
                return self.data
            return replace(self.data, context_length=smoothing_context(self.data))
        return choose_linear_forecast(self.data, config.model)

    @staticmethod
    def select_columns(
        options: LoadOptions, features: Sequence[str] | None, targets: Sequence[str] | None
    ) -> LoadOptions:
        options = Task.select_columns(options, features, targets)
        return options.with_options(target=tuple(targets)) if targets else options

    def describe(self) -> dict[str, Any]:
        data = self.data
        return {
            "features": list(data.channels),
            "targets": list(data.targets),
            "series": len(data.series),
            "frequency": data.frequency,
            "stamps": data.notes.get("stamps") or (None if data.series[0].ds.dtype.kind == "M" else "step"),
            "season": data.season,
            "horizon": data.horizon,
            "context_length": data.context_length,
            "longest": max(map(len, data.training_values())),
            "validation_steps": data.validation_steps,
            "test_steps": data.test_steps,
            "future": list(data.future),
            "static": list(data.static),
            "calendar": calendar_periods(data.calendar),
            "splits": {name: len(windows) for name, windows in data.splits().items()},
        }

    def build_model(self, config: Config) -> Forecaster:
        model, data = config.model, self.data
        return Forecaster(
            model.cell,
            len(data.channels),
            data.horizon,
            model.hidden_size,
            target_indices=data.target_indices,
            quantiles=config.task.quantiles or (),
            head=model.head,
            skip=model.skip or "none",
            anchor="mean" if cell_info(model.cell).cell.is_forecast else "last",
            non_negative=model.non_negative is True,
            future_indices=data.future_indices,
            static_size=len(data.static),
            head_dropout=model.head_dropout or 0.0,
            **network_options(model),
        )

    def fit_inputs(self, model: SequenceModel, config: Config) -> None:
        assert isinstance(model, Forecaster)
        model.fit_scaling(self.data.training_values())
        # The linear skip is solved for in units of the scaling, so it comes second.
        fit_forecaster(model, self.data, linear_settings(config.model))
        windows = self.data.windows("train")
        model.fit_lowest_share(map(windows.gather, batch_evenly_spaced(windows, _LOWEST_WINDOWS, BATCH_SIZE)))

    def minibatches(self, model: SequenceModel, training: TrainingConfig) -> Minibatches:
        assert training.batch_size is not None
        return SampleMinibatches(
            self.data.windows("train"),
            training.batch_size,
            next(model.parameters()).device,
            warm_up=training.warm_up or 0,
            multiple=model.patches.stride,
        )

    def objective(self, training: TrainingConfig) -> Objective:
        # Errors of series that differ in size are only comparable in units of each series, which one that repeats its
        # seasons exactly has not.
        targets = list(self.data.target_indices)
        parts = self.data.training_values() if len(self.data.series) > 1 else []
        has_unit = any((seasonal_scale(values[:, targets], self.data.season) > 0).any() for values in parts)
        return ForecastObjective("mase" if has_unit else "mae")

    def solve(self, model: SequenceModel, training: TrainingConfig) -> Solution:
        assert isinstance(model, Forecaster)
        data = self.data
        if model.rnn.cells[0].is_forecast:
            # No training window has the whole context, which is as long as the series: half of one tells the quantiles.
            usual = int(np.median([len(values) for values in data.training_values()]))
            data = replace(data, context_length=max(1, min(data.context_length, usual // 2)))
        return Solution(fit_forecast_head(model, data.windows("train")))

    def scorer(self, split: SplitName, config: Config) -> ForecastScorer:
        # Its naive forecasts are computed once for a run.
        key = split, tuple(config.task.quantiles or ())
        if key not in self._scorers:
            self._scorers[key] = ForecastScorer(self.data, split, quantiles=key[1])
        return self._scorers[key]

    def calibration_reference(self, model: SequenceModel) -> Tensor | None:
        """Return the weights of the linear skip before training; None where there is no skip."""
        assert isinstance(model, Forecaster)
        return None if model.skip is None else model.skip.weight.detach().clone()

    def calibrate(
        self, model: SequenceModel, config: Config, reference: Tensor | None, intervals: Conformal | None = None
    ) -> dict[str, Any]:
        assert isinstance(model, Forecaster)
        model.eval()
        windows = self.data.windows("validation")
        calibration: dict[str, Any] = {}
        if not len(windows):
            return calibration
        # Layers of random weights add nothing to a skip; only the network on known values is worth comparing with it.
        is_skip_alone = config.training.method == CLOSED_FORM and model.known is None
        # The gate changes the mean, which the offsets of the quantiles are counted from.
        # Forecasts that are rolled out are not linear in a share of the layers.
        if reference is not None and not is_skip_alone and model.head_kind == "direct":
            calibration["gate"] = asdict(gate(model, reference, windows))
        if config.training.calibrate:
            calibration["intervals"] = fit_offsets(model, intervals or self._intervals(model, config))
        return calibration

    def _intervals(self, model: Forecaster, config: Config) -> Conformal:
        """Return the offsets of quantiles by windows that no weight was fitted to.

        A closed form leaves the validation split alone, and earlier fits of its linear map leave what comes after them.
        Smoothing has no weights.
        """
        scores = [conformity_scores(model, self.data.windows("validation"))]
        linear = linear_settings(config.model)
        has_weights = model.known is not None or (linear is None and not model.rnn.cells[0].is_forecast)
        if config.training.method != CLOSED_FORM or has_weights:
            return conformal_offsets(scores, by="the validation split")
        earlier = copy.deepcopy(model)
        least = 0 if linear is None else linear.context_length + self.data.horizon
        if linear is not None and linear.strength < FIXED:
            # As many rows as coefficients: fewer fit the map that the penalty pulls to.
            least += linear.context_length
        for part in earlier_ends(self.data, least):
            fit_forecaster(earlier, part, linear)
            if len(windows := part.windows("test")):
                scores.append(conformity_scores(earlier, windows))
        return conformal_offsets(scores)

    def final_scores(self, predictor: TorchPredictor, config: Config, plots: Path | None) -> FinalScores:
        levels = config.task.quantiles or ()
        metrics: dict[str, Scores] = {}
        for split in ("validation", "test"):
            scorer = self.scorer(split, config)
            if not scorer.samples:
                continue
            outputs = predict(predictor, scorer.source)
            metrics[split] = scorer.score(outputs)
            # The last window of the test is the latest forecast whose truth is known.
            if plots is not None and split == "test":
                draw_last_window(plots / "forecast.png", self.data, split, outputs, levels)
        return FinalScores(metrics)

    def score(
        self,
        predictor: Any,
        split: str,
        names: PredictorNames,
        extras: ScoreExtras | None = None,
        *,
        batch_size: int = BATCH_SIZE,
    ) -> SplitScores:
        if extras is not None and extras.free_run is not None:
            # Before what takes time.
            check_soak(self.data)
        scorer = open_forecast(self.data, split, names)
        outputs = predict(predictor, scorer.source, batch_size=batch_size)
        metrics = scorer.score(outputs)
        # Windows without any value in the context are not scored; their number is reported.
        results: dict[str, Any] = {"windows_without_context": scorer.windows_without_context}
        if extras is None:
            return SplitScores(metrics, scorer.samples, results)
        results |= self._score_tables(scorer, outputs, extras)
        if extras.backtest is not None:
            results["backtest"] = backtest(predictor, self.data, split, quantiles=names.quantiles, **extras.backtest)
        if extras.free_run is not None:
            # The free run is compared with the bound on the state in the certificate.
            certificate = extras.free_run()
            results["soak"] = soak(predictor, self.data, split, certificate)
            results["soak"] |= self._stream(predictor, split, names.quantiles or (), certificate, extras)
        return SplitScores(metrics, scorer.samples, results)

    def _stream(
        self, predictor: Any, split: str, levels: Sequence[float], certificate: Mapping[str, Any], extras: ScoreExtras
    ) -> dict[str, Any]:
        """Return ``streamed``, the report on a stream of the split, and ``streamed_reason``, why it is None."""
        if extras.stream_monitor is None:
            return {}
        if not symmetric_levels(levels):
            reason = f"no two levels of the quantiles add up to 1, got {list(levels)}"
            return {"streamed": None, "streamed_reason": reason}
        monitor = extras.stream_monitor(self.data, levels, predictor.patch_stride, certificate)
        report = stream_report(predictor, self.data, split, levels, monitor)
        return {"streamed": report, "streamed_reason": None}

    def _score_tables(self, scorer: ForecastScorer, outputs: Outputs, extras: ScoreExtras) -> dict[str, Any]:
        functions = {"series": by_series, "step": by_step}
        # Files get both tables, the results only those that were asked for.
        tables = {
            f"by_{name}": function(self.data, scorer, outputs)
            for name, function in functions.items()
            if name in extras.by or extras.tables is not None
        }
        results: dict[str, Any] = {f"by_{name}": tables[f"by_{name}"] for name in functions if name in extras.by}
        if extras.tables is not None:
            results["tables"] = [str(path) for path in write_tables(extras.tables, tables)]
        return results

    def sample_errors(self, predictor: Any, split: str, names: PredictorNames) -> SampleErrors:
        scorer = open_forecast(self.data, split, names)
        series, ends = scorer.origins.T
        clusters = {"stretches of time": stretches_of_time(scorer.origins, self.data.horizon), "series": series}
        identifiers = [each.unique_id for each in self.data.series]
        keys = [(identifiers[number], int(end)) for number, end in zip(series, ends, strict=True)]
        is_scaled = len(self.data.series) > 1
        errors = scorer.window_errors(predict(predictor, scorer.source), is_scaled=is_scaled)
        return SampleErrors("mase" if is_scaled else "mae", keys, errors, clusters)

    def draw_figure(
        self, kind: str, path: Path, predictor: Any, split: str, names: PredictorNames, window: WindowChoice
    ) -> dict[str, Any]:
        # Raises if the data does not fit the model; its scorer is not needed.
        open_forecast(self.data, split, names)
        selected = select_window(self.data, split, window)
        outputs = predict(predictor, Subset(self.data.windows(split), np.array([selected.index])))
        # Without the batch axis: (steps, targets), and (steps, targets, levels) for quantiles.
        answer = {name: values[0] for name, values in outputs.items()}
        draw_forecast(path, self.data, split, selected.index, answer, names.quantiles or (), selected.target)
        return {"series": selected.series, "window": selected.number, "windows": selected.count}

    def select_observed_samples(
        self, split: str, *, count: int, max_length: int, outputs: Sequence[str] | None = None
    ) -> Samples:
        return cut_samples(self._spread_samples(split, count), max_length, from_end=True)

    def plan(self, config: Config) -> dict[str, Any]:
        data = self.data
        return {
            "horizon": data.horizon,
            "context_length": data.context_length,
            "season": data.season,
            "targets": list(data.targets),
            "quantiles": list(config.task.quantiles or ()),
        }

    def largest_sample(self, training: TrainingConfig) -> tuple[Samples, int]:
        windows, warm_up = self.data.windows("train"), training.warm_up or 0
        # The first windows of a series have no steps before their context to make it longer by.
        return windows.gather_longer([len(windows) - 1], warm_up), self.data.context_length + warm_up

    def data_figure(self) -> Figure:
        return series_figure(self.data)


def earlier_ends(data: ForecastData, least: int) -> Iterator[ForecastData]:
    """Yield the data as it was before each fold of the latest half of the training steps, whose windows test.

    Args:
        data: The series.
        least: Training steps before the first fold at least.
    """
    held_out = data.validation_steps + data.test_steps
    usual = int(np.median([len(values) for values in data.training_values()]))
    span = max(0, min(usual // 2, usual - least))
    ends = [held_out + fold * span // FOLDS for fold in range(FOLDS + 1)]
    for last, first in pairwise(ends):
        # The truths of a fold's last windows lie beyond it.
        cut = last - data.horizon + 1
        series = tuple(each.without_last(cut) for each in data.series if len(each.values) > first)
        yield replace(data, series=series, validation_steps=0, test_steps=first - cut)


MOST_SMOOTHED = 800
"""Steps that a smoothing cell is run over before a forecast at most."""


def smoothing_context(data: ForecastData) -> int:
    """Return the steps that a smoothing cell reads before a forecast: the longest training series, up to a limit."""
    # One training window of the longest series has all of it.
    longest = max(map(len, data.training_values())) - data.horizon
    return max(1, min(longest, max(MOST_SMOOTHED, 3 * data.season)))


def smoothing_season(data: ForecastData) -> int:
    """Return the season of a smoothing cell: the longest that the data shows and the context holds three times."""
    longest = min(data.context_length, max(map(len, data.training_values())))
    # Whether there is a season at all is decided in the cell.
    held = [season for season in confirmed_seasons(data) if 3 * season <= longest]
    return max(held, default=data.season if data.season <= longest else 1)


def linear_settings(model: ModelConfig) -> LinearForecast | None:
    """Return how the linear skip of resolved settings is solved for; None if there is none."""
    if model.skip != "linear":
        return None
    assert model.window is not None
    assert model.skip_prior is not None
    assert model.skip_strength is not None
    assert model.skip_seasons is not None
    return LinearForecast(
        model.window,
        model.log is True,
        model.skip_prior,
        model.skip_strength,
        model.skip_seasons,
    )


def _check_skip_lags(model: ModelConfig) -> None:
    """Refuse values before a step that the scaling of a skip does not remember.

    Raises:
        ConfigError: If there are any.
    """
    assert model.window is not None
    lags = {"skip_seasons": model.skip_seasons or ()}
    if isinstance(model.skip_prior, int):
        lags["skip_prior"] = (model.skip_prior,)
    for key, steps in lags.items():
        if max(steps, default=1) > model.window:
            raise ConfigError(
                f"model.{key} is at most the {model.window} steps that the scaling 'context' remembers, got "
                f"{max(steps)}; set a longer {terms().key('task.context_length')}, or leave it out."
            )


def _patch_size(context: int) -> int:
    """Return the divisor of the context nearest to the target size of a patch, if one is close; else that size."""
    # A divisor cuts the context into whole patches.
    target_size = max(1.0, context / PATCHES)
    divisors = [size for size in range(1, context + 1) if context % size == 0]
    close_divisors = [size for size in divisors if target_size / 2 <= size <= 2 * target_size]
    return min(close_divisors, key=lambda size: abs(math.log(size / target_size)), default=round(target_size))
