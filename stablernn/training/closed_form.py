"""What of a forecaster is solved for: its linear skip, and how far training may move away from it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from stablernn.data.types import ForecastData
from stablernn.data.windows import WindowSet, evenly
from stablernn.models import Forecaster

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
        model.fit_skip(_batches(data.windows("train"), MOST_WINDOWS), strength)


def gate(model: Forecaster, skip: Tensor, windows: WindowSet) -> float:
    """Draw the mean forecast back towards the linear skip as far as the validation windows ask for.

    Layers that have learned what does not carry over to later windows are of no use beside a good linear map, and do
    harm. The share of the way from the first skip to the trained model that has the least absolute error, in units of
    the scaling, is put into the weights; quantiles keep their distance from the mean.

    Args:
        model: Trained, in evaluation mode, with a linear skip and a direct head; it is changed.
        skip: The skip's weights before training.
        windows: Those of the validation split.

    Returns:
        The share: 0 leaves the first skip alone, 1 the trained model as it is.
    """
    assert model.skip is not None
    trained = model.skip.weight.detach().clone()
    device = trained.device
    errors = torch.zeros(len(_SHARES), dtype=torch.float64)
    with torch.no_grad():
        for chosen in evenly(windows, GATE_WINDOWS, _BATCH):
            samples = windows.gather(chosen)
            x = torch.from_numpy(samples.x).to(device)
            found = {"static": samples.static, "future": samples.future}
            known = {name: torch.from_numpy(value).to(device) for name, value in found.items() if value is not None}
            times = None if samples.dt is None else torch.from_numpy(samples.dt).to(device)
            state = model.final_state(x, dt=times if model.max_dt is not None else None)
            change, location, scale = model.changes(state, **known)
            whole = change.mean(dim=1)[..., 0].double()
            model.skip.weight.copy_(skip)
            first = model.skip_change(state).double()
            model.skip.weight.copy_(trained)
            truth = model.scaling.transform(torch.from_numpy(samples.y).to(device), model.target_indices)
            wanted = ((truth - location) / scale).double()
            seen = ~torch.isnan(wanted)
            for number, share in enumerate(_SHARES):
                errors[number] += (first + share * (whole - first) - wanted)[seen].abs().sum().cpu()
        share = float(_SHARES[int(errors.argmin())])
        model.skip.weight.copy_(skip + share * (trained - skip))
        model.shrink_mean(share)
    return share


def _batches(windows: WindowSet, most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for chosen in evenly(windows, most, _BATCH):
        samples = windows.gather(chosen)
        yield samples.x, samples.y
