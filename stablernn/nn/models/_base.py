"""Whole models: scaling, recurrent layers, readout, head. Raw units in and out; NaN is a missing value.

A model is a recurrence with one flat tuple of states: what scaling holds, every layer's state, what the readout keeps.
:meth:`SequenceModel.transition` is one step of it and :meth:`SequenceModel.emit` the outputs that a state stands for:
what export freezes. :meth:`SequenceModel.run` is the same recurrence over whole sequences, by an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.errors import ConfigError, did_you_mean
from stablernn.nn.ensemble import Ensemble
from stablernn.nn.layers import check_tensor, group_parameters, valid_steps
from stablernn.nn.preprocessing import Patches, Scaling, create_scaling

States = tuple[Tensor, ...]
READOUTS = ("last", "mean", "max", "all")
_RUNNING = {"last": (), "mean": ("mean",), "max": ("max",), "all": ("mean", "max")}
"""What each readout keeps of the outputs so far."""


class NetworkOptions(TypedDict, total=False):
    """Keyword options that every model takes; :class:`SequenceModel` says what they mean and holds their defaults."""

    num_layers: int
    dropout: float
    readout: str
    scaling: str
    window: int | None
    season: int | None
    log: bool
    mask_channel: bool
    patch_size: int
    patch_stride: int | None
    patch_embedding: int
    members: int
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
        readout: What the head sees of the last layer's outputs so far: ``last``, their ``mean``, their ``max``,
            or ``all`` three side by side.
        scaling: ``standard``, ``window`` or ``context``, see :mod:`stablernn.nn.preprocessing`.
        window: Steps that ``window`` and ``context`` scaling remember.
        season: Steps of a season, for ``context`` scaling.
        log: Whether ``context`` scaling takes logarithms.
        mask_channel: Whether the first layer also sees which values were observed.
        patch_size: Samples that the first layer sees at once.
        patch_stride: Samples after which the layers advance by one step; ``patch_size`` when omitted.
        patch_embedding: Length of the vector that a patch is turned into by a linear map and a GELU before the layers;
            0 for none.
        members: Networks side by side that differ by their first weights; their answers are averaged.
        max_dt: Longest time between two steps, in units of the regular one, of a model for irregular time; None when
            all steps are regular. Only for cells that take ``dt``.
        preset: ``practical`` (ours) or ``paper``, the cell's defaults.
        cell_options: The cell's own options, which win over the preset.
        engine: What runs the steps, see :class:`stablernn.StableRNN`.
        inputs: What makes the first layer's channels, in place of a scaling of that kind.
    """

    task: str
    head: nn.Module
    output_names: tuple[str, ...]
    input_name: str = "x"
    every_step: bool = False
    """Whether whole sequences have an output at every step, and not only after the last."""

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
        season: int | None = None,
        log: bool = False,
        mask_channel: bool = False,
        patch_size: int = 1,
        patch_stride: int | None = None,
        patch_embedding: int = 0,
        members: int = 1,
        max_dt: float | None = None,
        preset: str = "practical",
        cell_options: Mapping[str, Any] | None = None,
        engine: str = "auto",
        inputs: Scaling | None = None,
    ) -> None:
        super().__init__()
        if readout not in READOUTS:
            raise ConfigError(
                f"Unknown readout '{readout}'.{did_you_mean(readout, READOUTS)} It is one of last, mean, max, all."
            )
        self.input_size = input_size
        self.readout = readout
        self.preset = preset
        self.window = window
        self.season = season
        self.log = log
        self.cell_options = dict(cell_options or {})
        self.scaling = inputs or create_scaling(
            scaling, input_size, window=window, mask_channel=mask_channel, season=season, log=log
        )
        stride = patch_size if patch_stride is None else patch_stride
        self.patches = Patches(self.scaling, patch_size, stride, end_aligned=self.task == "forecast")
        self.rnn = Ensemble(
            members,
            cell,
            self.patches.output_size,
            hidden_size,
            num_layers,
            embedding=patch_embedding,
            dropout=dropout,
            engine=engine,
            preset=preset,
            max_dt=max_dt,
            **self.cell_options,
        )
        # A linear map of a patch with one missing value would be missing altogether, and no state may hold NaN, which
        # the samples that one patch has in common with the next would be.
        apart = not patch_embedding and self.patches.size == self.patches.stride
        self.scaling.keep_missing = self.rnn.cells[0].takes_missing and apart

    @property
    def max_dt(self) -> float | None:
        """Longest time between two steps; None when the model takes regular steps only."""
        return self.rnn.first.max_dt

    @property
    def known_inputs(self) -> dict[str, tuple[int, ...]]:
        """What outputs are made from beside the state: names, and shapes after the batch. NaN where not known."""
        return {}

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of ``x`` for one step, after the batch: ``(input_size,)``, or ``(patch_stride, input_size)``."""
        return (self.input_size,) if self.patches.size == 1 else (self.patches.stride, self.input_size)

    def state_roles(self) -> list[tuple[str, int]]:
        """Role and length of every state tensor of the flat tuple; all start as zeros."""
        size = self.rnn.output_size
        running = [(f"{word} of outputs", size) for word in _RUNNING[self.readout]]
        kept = [*running, ("outputs seen", 1)] if running else []
        return [*self.patches.state_roles(), *self.rnn.state_roles(), *kept]

    def initial_state(self, batch_size: int) -> States:
        """Zeros for each tensor of :meth:`state_roles`."""
        return tuple(self.scaling.mean.new_zeros(batch_size, size) for _, size in self.state_roles())

    def fit_scaling(self, sequences: Iterable[np.ndarray]) -> None:
        """Take the scaling from the training split's sequences, each ``(time, input_size)``, NaN ignored."""
        self.scaling.fit(sequences)

    def mark_fitted(self) -> None:
        """Count every scaling as fitted: for weights of a training run, which may equal those of a new model."""
        self.scaling.mark_fitted()

    def materialize(self) -> list[tuple[Tensor, ...]]:
        """Each layer's used matrices, for steps with ``dt`` where the model takes it."""
        timed = self.max_dt is not None
        return [cell.materialize_timed() if timed else cell.materialize() for cell in self.rnn.cells]

    def transition(
        self, weights: Sequence[tuple[Tensor, ...]], x: Tensor, state: States, dt: Tensor | None = None
    ) -> States:
        """The flat state after one raw sample, or after one patch of them.

        Args:
            weights: What :meth:`materialize` gave.
            x: ``(batch, *sample_shape)``.
            state: The flat state before.
            dt: The time from the sample before to each sample, ``(batch,)`` or ``(batch, patch_stride)``.
        """
        patch_state, *_ = self._split(state)
        features, patch_state = self.patches.step(x[:, None] if self.patches.size == 1 else x, patch_state)
        return (*patch_state, *self.advance(weights, features, state[len(patch_state) :], dt))

    def advance(
        self, weights: Sequence[tuple[Tensor, ...]], features: Tensor, state: States, dt: Tensor | None = None
    ) -> States:
        """The part of :meth:`transition` behind scaling and patches: the states of the layers and of the readout.

        Args:
            weights: What :meth:`materialize` gave.
            features: The first layer's channels, ``(batch, patches.output_size)``.
            state: The flat state without that of the patches.
            dt: As :meth:`transition` takes it.
        """
        layers = len(self.rnn.state_roles())
        if dt is not None:
            dt = dt[:, None] if self.patches.size == 1 else dt.mean(dim=1, keepdim=True)
        following = self.rnn.advance(weights, features, state[:layers], dt)
        h = self.rnn.output(following)
        kept = state[layers:]
        if kept:
            *running, seen = kept
            after = [
                before + (h - before) / (seen + 1)
                if word == "mean"
                else torch.where(seen > 0, torch.maximum(before, h), h)
                for word, before in zip(_RUNNING[self.readout], running, strict=True)
            ]
            kept = (*after, seen + 1)
        return (*following, *kept)

    def emit(self, state: States, **known: Tensor) -> tuple[Tensor, ...]:
        """The outputs that a state and the ``known_inputs`` stand for, in the order of ``output_names``."""
        raise NotImplementedError

    def run(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        state: States | None = None,
        dt: Tensor | None = None,
        **known: Tensor,
    ) -> tuple[dict[str, Tensor], States]:
        """Outputs after the last valid step of each sequence, and the state there.

        Args:
            x: ``(batch, time, input_size)``, raw units, NaN where missing.
            lengths: ``(batch,)``; steps from there on are padding. All steps count when omitted.
            state: The flat state to go on from; zeros when omitted.
            dt: ``(batch, time)``, the time from the step before, for a model with ``max_dt``; 1 when omitted.
            known: The ``known_inputs``; one that is omitted is not known.

        Raises:
            ValueError: If an input has another shape, or is none that the model takes.
        """
        check_known(known, self.known_inputs, len(x))
        final = self.final_state(x, lengths, state, dt)
        return dict(zip(self.output_names, self.emit(final, **known), strict=True)), final

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
        patch_state, layer_state, kept = self._split(self.initial_state(len(x)) if state is None else state)
        with torch.no_grad():
            features, patches, patch_state = self.patches.sequence(x, valid, patch_state)
        if self.max_dt is None and dt is not None:
            raise ConfigError("The model was built for regular steps, got dt; give max_dt when it is built.")
        if self.max_dt is not None:
            # Checked before patches take means, in which a negative or a long one would not show.
            dt = x.new_ones(x.shape[:2]) if dt is None else self.rnn.first.checked_dt(dt, x, valid)
            dt = self.patches.time(dt, valid)
        outputs, layer_state = self.rnn.run(features, layer_state, patches, dt)
        if self.readout != "last":
            kept = self._keep(outputs, kept, valid_steps(features, patches))
        return (*patch_state, *layer_state, *kept)

    def penalty(self) -> Tensor | None:
        """What the cells add to the training loss, or None."""
        return self.rnn.penalty()

    def after_step(self, step: int, total_steps: int) -> None:
        """Let the cells update their parameters after optimizer step ``step`` (from 1) of ``total_steps``.

        See :meth:`stablernn.cells.StableCell.after_step`.
        """
        self.rnn.after_step(step, total_steps)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters behind ``orthogonal`` and unitary matrices, ``vectors`` and all ``other`` ones.

        Vectors stand apart in the preset ``practical`` only; papers let everything decay.
        """
        groups = group_parameters(self)
        if self.preset != "practical":
            return groups
        other = groups["other"]
        vectors = [parameter for parameter in other if parameter.dim() <= 1]
        return {**groups, "other": [parameter for parameter in other if parameter.dim() > 1], "vectors": vectors}

    def member_parameters(self) -> list[list[nn.Parameter]]:
        """The parameters of each member and, where there are any, those that all share: what is clipped together."""
        heads = getattr(self.head, "maps", None)
        own = [
            [*self.rnn.parameters_of(number), *(heads[number].parameters() if heads is not None else [])]
            for number in range(len(self.rnn))
        ]
        known = {id(parameter) for parameters in own for parameter in parameters}
        shared = [parameter for parameter in self.parameters() if id(parameter) not in known]
        return [*own, shared] if shared else own

    def config(self) -> dict[str, Any]:
        """What :func:`build_model` needs to build this model again, as JSON types."""
        return {
            "task": self.task,
            "cell": self.rnn.first.cell,
            "input_size": self.input_size,
            "hidden_size": self.rnn.first.hidden_size,
            "num_layers": self.rnn.first.num_layers,
            "dropout": self.rnn.first.dropout,
            "readout": self.readout,
            "scaling": self.scaling.kind,
            "window": self.window,
            "season": self.season,
            "log": self.log,
            "mask_channel": self.scaling.mask_channel,
            "patch_size": self.patches.size,
            "patch_stride": self.patches.stride,
            "patch_embedding": self.rnn.embedding,
            "members": len(self.rnn),
            "max_dt": self.max_dt,
            "preset": self.preset,
            "cell_options": self.cell_options,
        }

    @property
    def feature_size(self) -> int:
        """How much of a state the head of each member sees."""
        return self.rnn.first.output_size * (3 if self.readout == "all" else 1)

    def _features(self, state: States) -> Tensor:
        """What the heads see, ``(batch, members * feature_size)``."""
        _, layer_state, kept = self._split(state)
        if self.readout in ("mean", "max"):
            return kept[0]
        last = self.rnn.output(layer_state)
        if self.readout == "last":
            return last
        parts = [part.chunk(len(self.rnn), dim=-1) for part in (last, *kept[:2])]
        return torch.cat([piece for member in zip(*parts, strict=True) for piece in member], dim=-1)

    def _keep(self, outputs: Tensor, kept: States, valid: Tensor | None) -> States:
        """The readout's state after a sequence of the last layer's outputs, ``(batch, time, rnn.output_size)``."""
        *running, count = kept
        steps = outputs.new_full(count.shape, outputs.shape[1]) if valid is None else valid.sum(1, True).to(count.dtype)
        after = []
        for word, before in zip(_RUNNING[self.readout], running, strict=True):
            if word == "mean":
                masked = outputs if valid is None else outputs * valid[..., None]
                after.append((before * count + masked.sum(dim=1)) / (count + steps).clamp_min(1))
                continue
            masked = outputs if valid is None else outputs.masked_fill(~valid[..., None], -torch.inf)
            largest = torch.where(steps > 0, masked.amax(dim=1), before)
            after.append(torch.where(count > 0, torch.maximum(before, largest), largest))
        return (*after, count + steps)

    def _split(self, state: States) -> tuple[States, States, States]:
        first = len(self.patches.state_roles())
        second = first + len(self.rnn.state_roles())
        return state[:first], state[first:second], state[second:]


def check_known(known: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], batch: int) -> None:
    """Refuse what outputs are to be made from where its name or its shape is not the model's.

    Raises:
        ConfigError: If a name is none of ``shapes``.
        ValueError: If a shape is not ``(batch, *shapes[name])``.
    """
    for name, given in known.items():
        if name not in shapes:
            raise ConfigError(
                f"Unknown input '{name}'.{did_you_mean(name, shapes)} Beside the series the model takes "
                f"{' and '.join(shapes) or 'nothing'}."
            )
        if given.shape != (batch, *shapes[name]):
            raise ValueError(f"{name} has shape {tuple(given.shape)}, the model expects {(batch, *shapes[name])}.")
