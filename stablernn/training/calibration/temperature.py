"""Calibration of trained models: the temperature of a classifier, the conformal offsets of a forecaster."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablernn.cells import cached_weights
from stablernn.data.arrays import Samples
from stablernn.data.types import SequenceSplit
from stablernn.data.windows import WindowSet, batch_evenly_spaced
from stablernn.nn.models import Classifier, Forecaster
from stablernn.training.calibration.conformal import conformal_offsets

_BATCH = 256
MOST_NUMBERS = 50_000_000
"""Most quantiles, over all validation windows, from which offsets are computed."""
_LEAST_WINDOWS = 1_000
"""Fewest windows from which offsets are computed, however many quantiles each has."""
_MAX_TEMPERATURE = 20.0
"""Upper end of the search for a temperature; the lower end is 1 over it."""


def fit_temperature(model: Classifier, split: SequenceSplit) -> dict[str, Any]:
    """Fit the temperature to the validation split and set it (Guo, Pleiss, Sun, Weinberger, ICML 2017).

    It is the most probable one under a standard normal prior of its logarithm: the minimizer of the summed log loss
    plus half the squared logarithm. A model that is right about all of a small split is thus not taken for one that is
    never wrong, and with many sequences the prior has no weight.

    Args:
        model: Trained model in evaluation mode; its ``temperature`` is set.
        split: Labeled sequences; without any, or with one class only, the temperature stays 1.

    Returns:
        ``temperature``, ``samples``, and the log loss ``before`` and ``after``, as JSON types.
    """
    if not len(split) or len(np.unique(split.y)) < 2:
        return {"temperature": 1.0, "samples": len(split), "before": None, "after": None}
    logits, truth = uncalibrated_logits(model, split)
    temperature, after = best_temperature(logits, truth)
    model.temperature.fill_(temperature)
    return {
        "temperature": temperature,
        "samples": len(split),
        "before": _log_loss(logits, truth, 1.0),
        "after": after,
    }


def set_temperature(model: Classifier, temperature: float) -> dict[str, Any]:
    """Set the temperature of a model, and return the report of :func:`fit_temperature`, which saw no sequences."""
    model.temperature.fill_(temperature)
    return {"temperature": temperature, "samples": 0, "before": None, "after": None}


def uncalibrated_logits(model: Classifier, split: SequenceSplit) -> tuple[np.ndarray, np.ndarray]:
    """Set the temperature of a model to 1, and return its logits, float64 (samples, classes), and the true classes."""
    model.temperature.fill_(1.0)
    parts, device = [], model.temperature.device
    with torch.no_grad(), cached_weights(model):
        for start in range(0, len(split), _BATCH):
            x, lengths, dt = _inputs(split.gather(np.arange(start, min(start + _BATCH, len(split)))), device, model)
            parts.append(model(x, lengths, dt).double().cpu())
    return torch.cat(parts).numpy(), np.asarray(split.y, dtype=np.int64)


def best_temperature(logits: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Return the most probable temperature of logits under the prior of :func:`fit_temperature`, and its log loss.

    Args:
        logits: float64 (samples, classes).
        truth: int64 (samples,), the classes.
    """
    # Imported here, since it takes a fifth of a second.
    from scipy.optimize import minimize_scalar

    def negative_log_posterior(log_temperature: float) -> float:
        return len(truth) * _log_loss(logits, truth, float(np.exp(log_temperature))) + 0.5 * log_temperature**2

    bounds = (-np.log(_MAX_TEMPERATURE), np.log(_MAX_TEMPERATURE))
    result: Any = minimize_scalar(negative_log_posterior, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    temperature = float(np.exp(result.x))
    return temperature, _log_loss(logits, truth, temperature)


def _log_loss(logits: np.ndarray, truth: np.ndarray, temperature: float) -> float:
    return float(torch.nn.functional.cross_entropy(torch.from_numpy(logits / temperature), torch.from_numpy(truth)))


def fit_offsets(model: Forecaster, windows: WindowSet) -> dict[str, Any]:
    """Compute the conformal offsets of the quantiles from the validation windows and set them.

    Args:
        model: Trained model with quantiles, in evaluation mode; its ``offsets`` are set.
        windows: Windows of the validation split; if their quantiles exceed :data:`MOST_NUMBERS`, evenly spaced ones.

    Returns:
        The report of :func:`conformal_offsets`, with the ``unit`` and the ``offsets`` themselves, as JSON types.
    """
    # Scores are those of the uncalibrated quantiles, whatever an earlier calibration left behind.
    model.offsets.zero_()
    max_windows = max(_LEAST_WINDOWS, MOST_NUMBERS // model.offsets.numel())
    truths, quantiles, scales = [], [], []
    with torch.no_grad(), cached_weights(model):
        for numbers in batch_evenly_spaced(windows, max_windows, _BATCH):
            truth, window_quantiles, scale = _in_offset_units(model, windows.gather(numbers))
            truths.append(truth)
            quantiles.append(window_quantiles)
            scales.append(scale)
    conformal = conformal_offsets(
        np.concatenate(truths), np.concatenate(quantiles), np.concatenate(scales), model.quantiles
    )
    model.offsets.copy_(torch.from_numpy(conformal.offsets))
    unit = "the data's" if model.head_kind == "recursive" else "the scaling of each window"
    return {**conformal.report, "levels": list(model.quantiles), "unit": unit, "offsets": conformal.offsets.tolist()}


def _in_offset_units(model: Forecaster, samples: Samples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return true values, quantiles and scale of windows, in units in which all windows share an offset.

    Returns:
        (windows, horizon, targets), (windows, horizon, targets, levels) and (windows, 1, targets).
    """
    device = model.offsets.device
    x, lengths, dt = _inputs(samples, device, model)
    arrays = {"static": samples.static, "future": samples.future}
    covariates = {name: torch.from_numpy(value).to(device) for name, value in arrays.items() if value is not None}
    if model.head_kind == "recursive":
        # A recursive head applies offsets to its final quantiles, in units of the data.
        outputs, _ = model.run(x, lengths, None, dt, **covariates)
        return samples.y, outputs["quantiles"].cpu().numpy(), np.ones_like(samples.y[:, :1])
    change, location, scale = model.changes(model.final_state(x, lengths, dt=dt), **covariates)
    truth = model.scaling.transform(torch.from_numpy(samples.y).to(device), model.target_indices)
    # The mean over the members, (windows, horizon, targets, levels); the first level is the point forecast.
    quantiles = location[..., None] + scale[..., None] * change.mean(dim=1)[..., 1:].sort(dim=-1).values
    return truth.cpu().numpy(), quantiles.cpu().numpy(), scale.cpu().numpy()


def _inputs(
    samples: Samples, device: torch.device, model: Classifier | Forecaster
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return ``x``, ``lengths`` and, for a model of irregular time, ``dt`` as tensors on the device."""
    dt = None if samples.dt is None or model.max_dt is None else torch.from_numpy(samples.dt).to(device)
    return torch.from_numpy(samples.x).to(device), torch.from_numpy(samples.lengths).to(device), dt
