"""The linear skip of a forecaster: its solution by ridge regression, and the gate between it and the trained layers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stablernn.data.arrays import Samples
from stablernn.data.types import ForecastData
from stablernn.data.windows import WindowSet, batch_evenly_spaced
from stablernn.nn.models import Forecaster
from stablernn.training.loop.significance import Float64Array, standard_error

MOST_WINDOWS = 60_000
"""Training windows that the linear skip is fitted to at most, evenly spread over all of them."""
GATE_WINDOWS = 3_000
"""Validation windows that the gate is chosen on at most."""
_BATCH = 2048
_SHARES = torch.linspace(0, 1, 21, dtype=torch.float64)


def fit_forecaster(model: Forecaster, data: ForecastData, strength: float) -> None:
    """Fit the scaling of static covariates and the linear skip to the training split.

    Args:
        model: With its scaling fitted, on the CPU.
        data: What it is trained on.
        strength: Ridge penalty of the skip, as a share of the mean square of a scaled value.
    """
    if data.static:
        model.fit_static(np.stack([series.static for series in data.series]))
    if model.skip is not None:
        model.fit_skip(skip_samples(data.windows("train"), MOST_WINDOWS), strength)


@dataclass(frozen=True)
class Gate:
    """Comparison of the trained layers with the linear skip alone on the validation windows.

    Errors are mean absolute ones in units of the scaling.

    Attributes:
        share: Share of the way from the skip to the trained model that is kept: 0 is the skip alone.
        skip_error: Error of the skip alone.
        layers_error: Error at the share with the least error, whether it is kept or not.
        standard_error: Standard error of the difference between the two; None where the windows say nothing of it.
        windows: Number of windows.
    """

    share: float
    skip_error: float
    layers_error: float
    standard_error: float | None
    windows: int


def gate(model: Forecaster, skip: Tensor, windows: WindowSet) -> Gate:
    """Leave the layers out of the mean forecast unless they are better than the linear skip by more than noise.

    Layers that have learned what does not carry over to later windows add nothing to a good linear map, and do harm.
    Candidates are shares of the way from the first skip to the trained model, of a recursive head the two ends
    alone. That with the least absolute error over all validation windows is kept if it is better than the skip by more
    than one standard error, see :func:`stablernn.training.loop.significance.standard_error`; else the skip alone. The
    share is put into the weights; quantiles keep their distance from the mean.

    Args:
        model: Trained, in evaluation mode, with a linear skip; it is changed.
        skip: The skip's weights before training.
        windows: Those of the validation split.
    """
    assert model.skip is not None
    trained = model.skip.weight.detach().clone()
    batches = list(batch_evenly_spaced(windows, GATE_WINDOWS, _BATCH))
    shares = _SHARES if model.head_kind == "direct" else _SHARES[[0, -1]]
    # Sums over the observed values of each window, (windows, shares), and how many these are.
    with torch.no_grad():
        # Rolled-out forecasts are not linear in the share: each share would be a forecast of its own.
        if model.head_kind == "direct":
            parts = [_blended_errors(model, windows.gather(part), skip, trained, shares) for part in batches]
        else:
            alone = copy.deepcopy(model)
            set_share(alone, skip, trained, 0.0)
            parts = [_rolled_out_errors((alone, model), windows.gather(part)) for part in batches]
    errors, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    means = errors.sum(axis=0) / counts.sum()
    best = int(means.argmin())
    # (windows, 2): series and first forecast step, by which errors are clustered.
    origins = np.array(windows.origins, dtype=np.int64)[np.concatenate(batches)]
    noise = standard_error((errors[:, 0] - errors[:, best]) / counts.mean(), origins, model.horizon)
    is_better = noise is not None and means[0] - means[best] > noise
    share = float(shares[best]) if is_better else 0.0
    set_share(model, skip, trained, share)
    return Gate(share, float(means[0]), float(means[best]), noise, len(counts))


def _blended_errors(
    model: Forecaster, samples: Samples, skip: Tensor, trained: Tensor, shares: Tensor
) -> tuple[Float64Array, Float64Array]:
    """Return the summed errors of a direct head at each share, ``(windows, shares)``, and the observed numbers."""
    assert model.skip is not None
    x, dt, covariates = _inputs(model, samples)
    state = model.final_state(x, dt=dt)
    change, location, scale = model.changes(state, **covariates)
    # Mean of the members, and of it the point forecast, (windows, horizon, targets).
    full_change = change.mean(dim=1)[..., 0].double()
    model.skip.weight.copy_(skip)
    first = model.skip_change(state).double()
    model.skip.weight.copy_(trained)
    truth = model.scaling.transform(torch.from_numpy(samples.y).to(x.device), model.target_indices)
    target = ((truth - location) / scale).double()
    is_observed = ~torch.isnan(target)
    target = torch.where(is_observed, target, 0.0)
    # The mean of a direct head is linear in the share, so that shares need no further run of the layers.
    errors = [
        torch.where(is_observed, (first + share * (full_change - first) - target).abs(), 0.0).sum(dim=(1, 2))
        for share in shares
    ]
    return torch.stack(errors, dim=1).cpu().numpy(), is_observed.sum(dim=(1, 2)).double().cpu().numpy()


def _rolled_out_errors(models: Sequence[Forecaster], samples: Samples) -> tuple[Float64Array, Float64Array]:
    """Return the summed errors of recursive heads, ``(windows, models)``, and the observed numbers."""
    errors = []
    is_observed = torch.empty(0)
    for model in models:
        x, dt, covariates = _inputs(model, samples)
        outputs, state = model.run(x, None, None, dt, **covariates)
        # A recursive head reads the known values of one step at a time; the unit is the same for all steps.
        first = {name: value[:, :1] if name == "future" else value for name, value in covariates.items()}
        _, _, scale = model.changes(state, **first)
        raw = torch.from_numpy(samples.y).to(x.device)
        truth, mean = (model.scaling.transform(value, model.target_indices) for value in (raw, outputs["mean"]))
        distance = ((mean - truth) / scale).abs().double()
        is_observed = ~torch.isnan(distance)
        errors.append(torch.where(is_observed, distance, 0.0).sum(dim=(1, 2)))
    return torch.stack(errors, dim=1).cpu().numpy(), is_observed.sum(dim=(1, 2)).double().cpu().numpy()


def _inputs(model: Forecaster, samples: Samples) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    device = model.scaling.mean.device
    arrays = {"static": samples.static, "future": samples.future}
    covariates = {name: torch.from_numpy(value).to(device) for name, value in arrays.items() if value is not None}
    dt = None if samples.dt is None or model.max_dt is None else torch.from_numpy(samples.dt).to(device)
    return torch.from_numpy(samples.x).to(device), dt, covariates


def set_share(model: Forecaster, skip: Tensor, trained: Tensor, share: float) -> None:
    """Put a blend of the linear skip alone and the trained model into the weights of the mean forecast.

    Args:
        model: The trained model.
        skip: The skip's weights before training.
        trained: Those after it.
        share: 0 is the skip alone, 1 the trained model.
    """
    assert model.skip is not None
    with torch.no_grad():
        model.skip.weight.copy_(skip + share * (trained - skip))
    model.shrink_mean(share)


def skip_samples(windows: WindowSet, limit: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield contexts and truths of at most so many windows, in batches, as :meth:`Forecaster.fit_skip` takes them."""
    for numbers in batch_evenly_spaced(windows, limit, _BATCH):
        samples = windows.gather(numbers)
        yield samples.x, samples.y
