"""Whole models: scaling, recurrent layers, readout, head. Raw units in and out; NaN is a missing value.

A model is a recurrence with one flat tuple of states: what scaling holds, every layer's state, what the readout keeps.
:meth:`SequenceModel.transition` is one step of it and :meth:`SequenceModel.emit` the outputs that a state stands for;
export freezes these two. :meth:`SequenceModel.run` is the same recurrence over whole sequences, by an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

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
