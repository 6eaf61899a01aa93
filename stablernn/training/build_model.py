"""The model of a run, built from resolved settings and fitted to the scale of its training data."""

from __future__ import annotations

from typing import Any

from stablernn.data import ClassificationData, ForecastData
from stablernn.data.step_data import StepData
from stablernn.nn.models import Classifier, Forecaster, SequenceModel
from stablernn.training.loop.ridge_skip import fit_forecaster
from stablernn.training.run_data import Data
from stablernn.training.settings.config import Config
from stablernn.training.settings.predict_next_defaults import build_predictor
from stablernn.training.settings.resolve import enough_memory

_NOT_SHARED = {
    *("cell", "hidden_size", "mask_channel", "time", "time_step", "embedding_size", "predict_change"),
    *("head", "skip", "skip_strength", "log"),
}
"""Settings of the model that a classifier and a forecaster do not take by the same name."""


def create_model(config: Config, data: Data) -> SequenceModel:
    """The model that resolved settings describe, its scaling fitted to the training split.

    Raises:
        ConfigError: If the cell or the model has no such option.
        UnknownNameError: If the cell is not in the catalog.
    """
    with enough_memory(config.model):
        if isinstance(data, StepData):
            return build_predictor(config, data)
        model = _build(config, data)
    model.fit_scaling(data.training_values())
    if isinstance(model, Forecaster):
        assert isinstance(data, ForecastData)
        fit_forecaster(model, data, config.model.skip_strength)
    return model


def _build(config: Config, data: ClassificationData | ForecastData) -> SequenceModel:
    settings = config.model
    shared: dict[str, Any] = {
        **settings.model_dump(exclude=_NOT_SHARED),
        "mask_channel": settings.mask_channel is True,
        "log": settings.log is True,
    }
    if isinstance(data, ForecastData):
        return Forecaster(
            settings.cell,
            len(data.channels),
            data.horizon,
            settings.hidden_size,
            target_indices=data.target_indices,
            quantiles=config.task.quantiles or (),
            head=settings.head,
            skip=settings.skip or "none",
            future_indices=[data.channels.index(name) for name in data.future],
            static_size=len(data.static),
            **shared,
        )
    return Classifier(settings.cell, len(data.features), len(data.labels), settings.hidden_size, **shared)
