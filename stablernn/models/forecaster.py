"""The next values of a series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from torch import Tensor, nn

from stablernn.errors import ConfigError
from stablernn.models._base import NetworkOptions, SequenceModel, States


class Forecaster(SequenceModel):
    """The next ``horizon`` values of some of the channels, all at once, with quantiles.

    The head predicts the change from the last observed value, in units of the scaling: a head of zeros is the naive
    forecast.

    Args:
        cell: A key of the catalog, see :func:`stablernn.list_cells`.
        input_size: Raw channels per time step.
        horizon: Steps ahead, 1 or more.
        hidden_size: Length of each layer's state.
        target_indices: Which channels are forecast; the first one by default.
        quantiles: Levels in (0, 1), increasing; may be empty.
        options: Those of :class:`SequenceModel`, from ``num_layers`` on.

    Shape:
        - input: ``(batch, time, input_size)`` in raw units, NaN where missing
        - lengths: ``(batch,)`` integers, or None when every step counts
        - dt: ``(batch, time)``, the time from the step before, for a model with ``max_dt``
        - output: mean, ``(batch, horizon, targets)`` in raw units

    Raises:
        ConfigError: If an option is not among those listed.
        ValueError: If a size is out of range, or an input has another number of features.

    Example:
        >>> model = Forecaster("gru", input_size=2, horizon=12)
        >>> model(torch.zeros(3, 48, 2)).shape
        torch.Size([3, 12, 1])
    """

    task = "forecast"
    output_names: tuple[str, ...] = ("mean", "quantiles")

    def __init__(
        self,
        cell: str,
        input_size: int,
        horizon: int,
        hidden_size: int = 64,
        *,
        target_indices: Sequence[int] = (0,),
        quantiles: Sequence[float] = (0.1, 0.5, 0.9),
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__(cell, input_size, hidden_size, **options)
        if horizon < 1:
            raise ValueError(f"horizon must be 1 or more, got {horizon}.")
        if (
            not target_indices
            or len(set(target_indices)) < len(target_indices)
            or not all(0 <= index < input_size for index in target_indices)
        ):
            raise ValueError(
                f"target_indices must be different channels from 0 to {input_size - 1}, got {list(target_indices)}."
            )
        levels = list(quantiles)
        if levels != sorted(set(levels)) or not all(0 < level < 1 for level in levels):
            raise ConfigError(f"quantiles must increase and lie between 0 and 1, got {levels}.")
        self.horizon = horizon
        self.target_indices = [int(index) for index in target_indices]
        self.quantiles = levels
        if not levels:
            self.output_names = ("mean",)
        self.head = nn.Linear(self.rnn.output_size, horizon * len(self.target_indices) * (1 + len(levels)))

    def forward(self, x: Tensor, lengths: Tensor | None = None, dt: Tensor | None = None) -> Tensor:
        return self.emit(self.final_state(x, lengths, dt=dt))[0]

    def changes(self, state: States) -> tuple[Tensor, Tensor, Tensor]:
        """Forecast change, location and scale, of which a raw forecast is ``location + scale * change``.

        Returns:
            The change, ``(batch, horizon, targets, 1 + quantiles)`` with the mean first, and location and scale in raw
            units, ``(batch, 1, targets)``.
        """
        change = self.head(self._features(state)).unflatten(
            -1, (self.horizon, len(self.target_indices), 1 + len(self.quantiles))
        )
        location, scale = self.scaling.anchor(self._split(state)[0])
        return change, location[:, None, self.target_indices], scale[:, None, self.target_indices]

    def emit(self, state: States) -> tuple[Tensor, ...]:
        change, location, scale = self.changes(state)
        raw = location[..., None] + scale[..., None] * change
        if not self.quantiles:
            return (raw[..., 0],)
        # Sorting keeps quantiles from crossing; it never raises the pinball loss.
        return raw[..., 0], raw[..., 1:].sort(dim=-1).values

    def config(self) -> dict[str, Any]:
        return super().config() | {
            "horizon": self.horizon,
            "target_indices": self.target_indices,
            "quantiles": self.quantiles,
        }
