"""Whole models: scaling, recurrent layers, readout, head. Raw units in and out; NaN is a missing value.

A model is a recurrence with one flat tuple of states: what scaling holds, every layer's state, what the readout keeps.
:meth:`SequenceModel.transition` is one step of it and :meth:`SequenceModel.emit` the outputs that a state stands for;
export freezes these two. :meth:`SequenceModel.run` is the same recurrence over whole sequences, by an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.errors import ConfigError, near
from stablernn.layers import StableRNN, check_tensor, group_parameters, valid_steps
from stablernn.preprocessing import create_scaling

States = tuple[Tensor, ...]
READOUTS = ("last", "mean", "max")


class NetworkOptions(TypedDict, total=False):
    """Keyword options that every model takes; :class:`SequenceModel` says what they mean and holds their defaults."""

    num_layers: int
    dropout: float
    readout: str
    scaling: str
    window: int | None
    mask_channel: bool
    max_dt: float | None
    preset: str
    cell_options: Mapping[str, Any] | None
    engine: str


class SequenceModel(nn.Module):
    """What classifier and forecaster share.

    Args:
        cell: A key of the catalog, see :func:`stablernn.list_cells`.
        input_size: Raw features per time step, 1 or more.
        hidden_size: Length of each layer's state, 1 or more.
        num_layers: Recurrent layers, 1 or more.
        dropout: Share of a layer's outputs zeroed in training before the next layer, 0 to 1.
        readout: What the head sees of the last layer's outputs so far: ``last``, their ``mean`` or their ``max``.
        scaling: ``standard`` or ``window``, see :mod:`stablernn.preprocessing`.
        window: Steps that ``window`` scaling remembers.
        mask_channel: Whether the first layer also sees which values were observed.
        max_dt: Longest time between two steps, in units of the regular one, of a model for irregular time; None when
            all steps are regular. Only for cells that take ``dt``.
        preset: ``practical`` (ours) or ``paper``, the cell's defaults.
        cell_options: The cell's own options, which win over the preset.
        engine: What runs the steps, see :class:`stablernn.StableRNN`.
    """

    task: str
    output_names: tuple[str, ...]

    def __init__(
        self,
        cell: str,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        dropout: float = 0.0,
        readout: str = "last",
        scaling: str = "standard",
        window: int | None = None,
        mask_channel: bool = False,
        max_dt: float | None = None,
        preset: str = "practical",
        cell_options: Mapping[str, Any] | None = None,
        engine: str = "auto",
    ) -> None:
        super().__init__()
        if readout not in READOUTS:
            raise ConfigError(f"Unknown readout '{readout}'.{near(readout, READOUTS)} It is one of last, mean, max.")
        self.input_size = input_size
        self.readout = readout
        self.preset = preset
        self.window = window
        self.cell_options = dict(cell_options or {})
        self.scaling = create_scaling(scaling, input_size, window=window, mask_channel=mask_channel)
        self.rnn = StableRNN(
            cell,
            self.scaling.output_size,
            hidden_size,
            num_layers,
            dropout=dropout,
            engine=engine,
            preset=preset,
            max_dt=max_dt,
            **self.cell_options,
        )
        self.scaling.keep_missing = self.rnn.cells[0].takes_missing

    @property
    def max_dt(self) -> float | None:
        """Longest time between two steps; None when the model takes regular steps only."""
        return self.rnn.max_dt

    def state_roles(self) -> list[tuple[str, int]]:
        """Role and length of every state tensor of the flat tuple; all start as zeros."""
        size = self.rnn.output_size
        kept = [] if self.readout == "last" else [(f"{self.readout} of outputs", size), ("outputs seen", 1)]
        return [*self.scaling.state_roles(), *self.rnn.state_roles(), *kept]

    def initial_state(self, batch_size: int) -> States:
        """Zeros for each tensor of :meth:`state_roles`."""
        return tuple(self.scaling.mean.new_zeros(batch_size, size) for _, size in self.state_roles())

    def fit_scaling(self, sequences: Iterable[np.ndarray]) -> None:
        """Take the scaling from the training split's sequences, each ``(time, input_size)``, NaN ignored."""
        self.scaling.fit(sequences)

    def materialize(self) -> list[tuple[Tensor, ...]]:
        """Each layer's used matrices, for steps with ``dt`` where the model takes it."""
        timed = self.max_dt is not None
        return [cell.materialize_timed() if timed else cell.materialize() for cell in self.rnn.cells]

    def transition(
        self, weights: Sequence[tuple[Tensor, ...]], x: Tensor, state: States, dt: Tensor | None = None
    ) -> States:
        """The flat state after one raw sample ``(batch, input_size)``, a time ``dt`` ``(batch,)`` after the last."""
        scaled_state, layer_state, kept = self._split(state)
        scaled, scaled_state = self.scaling.step(x, scaled_state)
        following = self.rnn.advance(weights, scaled, layer_state, None if dt is None else dt[:, None])
        h = following[self._top]
        if self.readout == "mean":
            count = kept[1] + 1
            kept = (kept[0] + (h - kept[0]) / count, count)
        elif self.readout == "max":
            kept = (torch.where(kept[1] > 0, torch.maximum(kept[0], h), h), kept[1] + 1)
        return (*scaled_state, *following, *kept)

    def emit(self, state: States) -> tuple[Tensor, ...]:
        """The outputs that a state stands for, in the order of ``output_names``."""
        raise NotImplementedError

    def run(
        self, x: Tensor, lengths: Tensor | None = None, state: States | None = None, dt: Tensor | None = None
    ) -> tuple[dict[str, Tensor], States]:
        """Outputs after the last valid step of each sequence, and the state there.

        Args:
            x: ``(batch, time, input_size)``, raw units, NaN where missing.
            lengths: ``(batch,)``; steps from there on are padding. All steps count when omitted.
            state: The flat state to go on from; zeros when omitted.
            dt: ``(batch, time)``, the time from the step before, for a model with ``max_dt``; 1 when omitted.
        """
        final = self.final_state(x, lengths, state, dt)
        return dict(zip(self.output_names, self.emit(final), strict=True)), final

    def final_state(
        self, x: Tensor, lengths: Tensor | None = None, state: States | None = None, dt: Tensor | None = None
    ) -> States:
        """:meth:`run` without the outputs."""
        check_tensor(x, self.scaling.mean.dtype)
        if x.dim() != 3 or x.shape[-1] != self.input_size:
            raise ValueError(
                f"input has shape {tuple(x.shape)}, the model expects input_size={self.input_size} "
                f"(shape (batch, time, {self.input_size}))."
            )
        valid = valid_steps(x, lengths)
        scaled_state, layer_state, kept = self._split(self.initial_state(len(x)) if state is None else state)
        with torch.no_grad():
            scaled, scaled_state = self.scaling.sequence(x, scaled_state, valid)
        if self.max_dt is None and dt is not None:
            raise ConfigError("The model was built for regular steps, got dt; give max_dt when it is built.")
        if self.max_dt is not None and dt is None:
            dt = x.new_ones(x.shape[:2])
        outputs, layer_state = self.rnn.run(scaled, layer_state, None if valid is None else lengths, dt)
        if self.readout != "last":
            kept = self._keep(outputs, kept, valid)
        return (*scaled_state, *layer_state, *kept)

    def penalty(self) -> Tensor | None:
        """What the cells add to the training loss, or None."""
        return self.rnn.penalty()

    def after_step(self, step: int, total_steps: int) -> None:
        """Let the cells project their parameters after optimizer step ``step`` (from 1) of ``total_steps``."""
        self.rnn.after_step(step, total_steps)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters behind ``orthogonal`` and unitary matrices, and all ``other`` ones."""
        return group_parameters(self)

    def config(self) -> dict[str, Any]:
        """What :func:`build_model` needs to build this model again, as JSON types."""
        return {
            "task": self.task,
            "cell": self.rnn.cell,
            "input_size": self.input_size,
            "hidden_size": self.rnn.hidden_size,
            "num_layers": self.rnn.num_layers,
            "dropout": self.rnn.dropout,
            "readout": self.readout,
            "scaling": self.scaling.kind,
            "window": self.window,
            "mask_channel": self.scaling.mask_channel,
            "max_dt": self.max_dt,
            "preset": self.preset,
            "cell_options": self.cell_options,
        }

    def _features(self, state: States) -> Tensor:
        """What the head sees, ``(batch, output_size)``."""
        _, layer_state, kept = self._split(state)
        return layer_state[self._top] if self.readout == "last" else kept[0]

    @property
    def _top(self) -> int:
        """Where the last layer's output stands among the layers' states, from the end."""
        return -len(self.rnn.cells[-1].state_names)

    def _keep(self, outputs: Tensor, kept: States, valid: Tensor | None) -> States:
        """The readout's state after a sequence of the last layer's outputs, ``(batch, time, hidden)``."""
        before, count = kept
        steps = outputs.new_full(count.shape, outputs.shape[1]) if valid is None else valid.sum(1, True).to(count.dtype)
        masked = outputs if valid is None else outputs * valid[..., None]
        if self.readout == "mean":
            seen = count + steps
            return (before * count + masked.sum(dim=1)) / seen.clamp_min(1), seen
        if valid is not None:
            masked = outputs.masked_fill(~valid[..., None], -torch.inf)
        largest = torch.where(steps > 0, masked.amax(dim=1), before)
        return torch.where(count > 0, torch.maximum(before, largest), largest), count + steps

    def _split(self, state: States) -> tuple[States, States, States]:
        first = len(self.scaling.state_roles())
        second = first + len(self.rnn.state_roles())
        return state[:first], state[first:second], state[second:]


class Classifier(SequenceModel):
    """One label for a sequence.

    Args:
        cell: A key of the catalog, see :func:`stablernn.list_cells`.
        input_size: Raw features per time step.
        num_classes: Classes, 2 or more.
        hidden_size: Length of each layer's state.
        options: Those of :class:`SequenceModel`, from ``num_layers`` on.

    Shape:
        - input: ``(batch, time, input_size)`` in raw units, NaN where missing
        - lengths: ``(batch,)`` integers, or None when every step counts
        - dt: ``(batch, time)``, the time from the step before, for a model with ``max_dt``
        - output: logits, ``(batch, num_classes)``

    Raises:
        ConfigError: If an option is not among those listed.
        ValueError: If a size is out of range, or an input has another number of features.

    Example:
        >>> model = Classifier("lipschitz", input_size=1, num_classes=10)
        >>> model(torch.zeros(2, 64, 1)).shape
        torch.Size([2, 10])
    """

    task = "classify"
    output_names = ("logits", "probabilities")

    def __init__(
        self,
        cell: str,
        input_size: int,
        num_classes: int,
        hidden_size: int = 64,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__(cell, input_size, hidden_size, **options)
        if num_classes < 2:
            raise ValueError(f"num_classes must be 2 or more, got {num_classes}.")
        self.num_classes = num_classes
        self.head = nn.Linear(self.rnn.output_size, num_classes)

    def forward(self, x: Tensor, lengths: Tensor | None = None, dt: Tensor | None = None) -> Tensor:
        logits: Tensor = self.head(self._features(self.final_state(x, lengths, dt=dt)))
        return logits

    def emit(self, state: States) -> tuple[Tensor, ...]:
        logits = self.head(self._features(state))
        return logits, torch.softmax(logits, dim=-1)

    def config(self) -> dict[str, Any]:
        return super().config() | {"num_classes": self.num_classes}


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


_MODELS: dict[str, type[SequenceModel]] = {model.task: model for model in (Classifier, Forecaster)}


def build_model(config: Mapping[str, Any]) -> SequenceModel:
    """A model from what :meth:`SequenceModel.config` returned, with fresh weights.

    Raises:
        ConfigError: If the task is none of ours.
    """
    options = dict(config)
    task = str(options.pop("task", None))
    if task not in _MODELS:
        raise ConfigError(f"Unknown task '{task}'.{near(task, _MODELS)} It is one of {', '.join(sorted(_MODELS))}.")
    return _MODELS[task](**options)
