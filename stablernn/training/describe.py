"""The description of a run's data, as ``data.json`` holds it."""

from __future__ import annotations

from typing import Any

from stablernn.data import ForecastData
from stablernn.data.forecasting.covariates import calendar_periods
from stablernn.data.step_data import StepData
from stablernn.nn.models import SequenceModel
from stablernn.training.run_data import Data
from stablernn.training.settings.predict_next_defaults import describe_steps


def describe_data(data: Data, model: SequenceModel) -> dict[str, Any]:
    """What ``data.json`` holds: all that is needed to read more data of the same kind, and what was counted."""
    scaling = model.scaling
    described: dict[str, Any] = {"name": data.name, "task": data.task, "fingerprint": data.fingerprint}
    if isinstance(data, ForecastData):
        described |= {
            "features": list(data.channels),
            "targets": list(data.targets),
            "series": len(data.series),
            "frequency": data.frequency,
            "stamps": data.notes.get("stamps") or (None if data.series[0].ds.dtype.kind == "M" else "step"),
            "season": data.season,
            "horizon": data.horizon,
            "context_length": data.context_length,
            "validation_steps": data.validation_steps,
            "test_steps": data.test_steps,
            "future": list(data.future),
            "static": list(data.static),
            "calendar": calendar_periods(data.calendar),
            "splits": {split: len(data.windows(split)) for split in ("train", "validation", "test")},
        }
    elif isinstance(data, StepData):
        described |= describe_steps(data)
    else:
        sizes = {"train": data.train, "validation": data.validation, "test": data.test}
        described |= {
            "features": list(data.features),
            "labels": list(data.labels),
            "stamps": data.notes.get("stamps"),
            "longest": int(data.train.lengths.max()),
            "splits": {name: len(split) for name, split in sizes.items() if split is not None},
        }
    return described | {
        "scaling": {
            "kind": scaling.kind,
            "mean": scaling.mean.tolist(),
            "scale": scaling.scale.tolist(),
            "window": model.window,
            "mask_channel": scaling.mask_channel,
        },
        "notes": data.notes,
    }
