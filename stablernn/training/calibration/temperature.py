"""After training: probabilities that are as sure as they are right, quantiles that cover what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from stablernn.cells import cached_weights
from stablernn.data.arrays import Samples
from stablernn.data.types import SequenceSplit
from stablernn.data.windows import WindowSet, batch_evenly_spaced
from stablernn.nn.models import Classifier, Forecaster
from stablernn.training.calibration.conformal import conformal_offsets

_BATCH = 256
MOST_NUMBERS = 50_000_000
"""Quantiles of validation windows that offsets are taken from at most."""
_LEAST_WINDOWS = 1_000
_HOTTEST = 20.0
"""Temperatures are looked for up to this and down to one by this."""


def fit_temperature(model: Classifier, split: SequenceSplit) -> dict[str, Any]:
    """Set the temperature that the validation split asks for (Guo, Pleiss, Sun, Weinberger, ICML 2017).

    It is the most probable one where its logarithm is normal around 0 with deviation 1: the summed log-loss plus half
    the squared logarithm is least. So a model that is right about all of a small split is not taken for one that is
    never wrong, and the prior weighs nothing where there are many sequences.

    Args:
        model: Trained, in evaluation mode; its ``temperature`` is set.
        split: Sequences with labels; with none, or all of one class, the temperature stays 1.

    Returns:
        ``temperature``, ``samples``, and the log-loss ``before`` and ``after``, as JSON types.
    """
    if not len(split) or len(np.unique(split.y)) < 2:
        return {"temperature": 1.0, "samples": len(split), "before": None, "after": None}
    model.temperature.fill_(1.0)
    parts, device = [], model.temperature.device
    with torch.no_grad(), cached_weights(model):
        for start in range(0, len(split), _BATCH):
            x, lengths, dt = _inputs(split.gather(np.arange(start, min(start + _BATCH, len(split)))), device, model)
            parts.append(model(x, lengths, dt).double().cpu())
    logits, truth = torch.cat(parts), torch.from_numpy(np.asarray(split.y, dtype=np.int64))

    def loss(log_temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits / np.exp(log_temperature), truth))

    def surprise(log_temperature: float) -> float:
        return len(split) * loss(log_temperature) + 0.5 * log_temperature**2

    bounds = (-np.log(_HOTTEST), np.log(_HOTTEST))
    found: Any = minimize_scalar(surprise, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    temperature = float(np.exp(found.x))
    model.temperature.fill_(temperature)
    return {
        "temperature": temperature,
        "samples": len(split),
        "before": loss(0.0),
        "after": loss(np.log(temperature)),
    }


def fit_offsets(model: Forecaster, windows: WindowSet) -> dict[str, Any]:
    """Move the quantiles of every step ahead so that they cover the validation windows; see :mod:`conformal`.

    Args:
        model: Trained, in evaluation mode, with quantiles; its ``offsets`` are set.
        windows: Those of the validation split; where their quantiles are more than :data:`MOST_NUMBERS`, as many as
            that, evenly spread.

    Returns:
        The report of :func:`conformal_offsets`, with the ``unit`` and the ``offsets`` themselves, as JSON types.
    """
    model.offsets.zero_()
    most = max(_LEAST_WINDOWS, MOST_NUMBERS // model.offsets.numel())
    truths, quantiles, scales = [], [], []
    with torch.no_grad(), cached_weights(model):
        for chosen in batch_evenly_spaced(windows, most, _BATCH):
            samples = windows.gather(chosen)
            truth, spread, scale = _scaled(model, samples)
            truths.append(truth)
            quantiles.append(spread)
            scales.append(scale)
    found = conformal_offsets(
        np.concatenate(truths), np.concatenate(quantiles), np.concatenate(scales), model.quantiles
    )
    model.offsets.copy_(torch.from_numpy(found.offsets))
    unit = "the data's" if model.head_kind == "recursive" else "the scaling of each window"
    return {**found.report, "levels": list(model.quantiles), "unit": unit, "offsets": found.offsets.tolist()}


def _scaled(model: Forecaster, samples: Samples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Truth, quantiles and unit of each window, in units in which an offset is one number for all windows."""
    device = model.offsets.device
    x, lengths, dt = _inputs(samples, device, model)
    found = {"static": samples.static, "future": samples.future}
    known = {name: torch.from_numpy(value).to(device) for name, value in found.items() if value is not None}
    if model.head_kind == "recursive":
        outputs, _ = model.run(x, lengths, None, dt, **known)
        return samples.y, outputs["quantiles"].cpu().numpy(), np.ones_like(samples.y[:, :1])
    change, location, scale = model.changes(model.final_state(x, lengths, dt=dt), **known)
    truth = model.scaling.transform(torch.from_numpy(samples.y).to(device), model.target_indices)
    spread = location[..., None] + scale[..., None] * change.mean(dim=1)[..., 1:].sort(dim=-1).values
    return truth.cpu().numpy(), spread.cpu().numpy(), scale.cpu().numpy()


def _inputs(
    samples: Samples, device: torch.device, model: Classifier | Forecaster
) -> tuple[Tensor, Tensor, Tensor | None]:
    timed = samples.dt is not None and model.max_dt is not None
    dt = torch.from_numpy(samples.dt).to(device) if timed and samples.dt is not None else None
    return torch.from_numpy(samples.x).to(device), torch.from_numpy(samples.lengths).to(device), dt
