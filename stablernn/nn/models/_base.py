"""The base class of models: scaling, recurrent layers, readout, head. Raw units in and out; NaN is a missing value.

A model is a recurrence with one flat tuple of states: that of the scaling, every layer's, and that of the readout.
:meth:`SequenceModel.transition` is one step of it and :meth:`SequenceModel.emit` computes the outputs of a state;
export traces these two. :meth:`SequenceModel.run` is the same recurrence over whole sequences, by an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.cells import OWN_PACKAGE, Weights, cell_info
from stablernn.errors import ConfigError, did_you_mean
from stablernn.nn.convolutions import ConvolutionShape
from stablernn.nn.ensemble import Ensemble
from stablernn.nn.layers import check_tensor, group_parameters
from stablernn.nn.preprocessing import Patches, Scaling, create_resampling, create_scaling
from stablernn.nn.segments import valid_steps

READOUTS = ("last", "mean", "max", "all")
STATISTICS = {"last": (), "mean": ("mean",), "max": ("max",), "all": ("mean", "max")}
"""The statistics in the state of each readout; a count of the outputs follows them if there are any."""
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
"""Activations between linear maps of a head, with the options that they have by default."""
States = tuple[Tensor, ...]


class NetworkOptions(TypedDict, total=False):
    """Keyword options of every model; ``SequenceModel`` describes them and has their defaults."""

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
    conv_layers: int
    conv_channels: int
    members: int
    max_dt: float | None
    resample_steps: int | None
    head_layers: Sequence[int | str]
    preset: str
    cell_options: Mapping[str, Any] | None
    engine: str


def check_covariates(covariates: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], batch: int) -> None:
    """Refuse inputs of ``SequenceModel.emit`` whose name or shape is not the model's.

    Raises:
        ConfigError: If a name is not in ``shapes``.
        ValueError: If a shape is not ``(batch, *shapes[name])``.
    """
    for name, tensor in covariates.items():
        if name not in shapes:
            raise ConfigError(
                f"Unknown input '{name}'.{did_you_mean(name, shapes)} Besides the series the model takes "
                f"{' and '.join(shapes) or 'nothing'}."
            )
        if tensor.shape != (batch, *shapes[name]):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the model expects {(batch, *shapes[name])}.")


def build_head_layers(size: int, layers: Sequence[int | str], members: int) -> nn.Sequential:
    """Return the layers between the readout and the last linear map of a head.

    Args:
        size: Length of the readout.
        layers: Lengths of linear maps, and names of activations.
        members: Networks of the ensemble.

    Raises:
        ConfigError: If a length is below 1, a name is unknown, or there are several members.
    """
    if layers and members > 1:
        raise ConfigError(f"head_layers are for one network, got members={members}. Leave one of them out.")
    modules: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, str):
            if layer not in ACTIVATIONS:
                raise ConfigError(
                    f"Unknown activation '{layer}' in head_layers.{did_you_mean(layer, ACTIVATIONS)} It is one of "
                    f"{', '.join(ACTIVATIONS)}."
                )
            modules.append(ACTIVATIONS[layer]())
            continue
        if layer < 1:
            raise ConfigError(f"A linear map in head_layers has 1 output or more, got {layer}.")
        modules.append(nn.Linear(size, layer))
        size = layer
    return nn.Sequential(*modules)


def step_statistics(readout: str, output: Tensor, state: States) -> States:
    """Return the statistics after one more output.

    Args:
        readout: One of ``READOUTS`` that keeps statistics.
        output: The last layer's output, ``(batch, output_size)``.
        state: The statistics before, each ``(batch, output_size)``, and the count, ``(batch, 1)``.
    """
    *statistics, count = state
    # A maximum of no outputs is none: the zeros of the initial state must not enter it.
    updated = [
        value + (output - value) / (count + 1)
        if statistic == "mean"
        else torch.where(count > 0, torch.maximum(value, output), output)
        for statistic, value in zip(STATISTICS[readout], statistics, strict=True)
    ]
    return (*updated, count + 1)


def sequence_statistics(readout: str, outputs: Tensor, state: States, valid: Tensor | None) -> States:
    """Return the statistics after the outputs of further steps.

    Args:
        readout: One of ``READOUTS`` that keeps statistics.
        outputs: The last layer's outputs, ``(batch, time, output_size)``.
        state: As :func:`step_statistics` takes it.
        valid: A mask of the steps that count, ``(batch, time)``; None if all do.
    """
    *statistics, count = state
    steps = outputs.new_full(count.shape, outputs.shape[1]) if valid is None else valid.sum(1, True).to(count.dtype)
    updated = []
    for statistic, value in zip(STATISTICS[readout], statistics, strict=True):
        if statistic == "mean":
            masked = outputs if valid is None else outputs * valid[..., None]
            updated.append((value * count + masked.sum(dim=1)) / (count + steps).clamp_min(1))
            continue
        masked = outputs if valid is None else outputs.masked_fill(~valid[..., None], -torch.inf)
        # A sequence of no steps leaves its maximum, and the first outputs replace the initial zeros.
        largest = torch.where(steps > 0, masked.amax(dim=1), value)
        updated.append(torch.where(count > 0, torch.maximum(value, largest), largest))
    return (*updated, count + steps)


class SequenceModel(nn.Module):
    """Base class of the models of all tasks.

    Args:
        cell: A key of the catalog, see :func:`stablernn.list_cells`.
        input_size: Raw features per time step, 1 or more.
        hidden_size: Length of each layer's state, 1 or more.
        num_layers: Recurrent layers, 1 or more.
        dropout: Share of a layer's outputs zeroed in training before the next layer, 0 to 1.
        readout: The head's input, from the last layer's outputs so far: the ``last`` one, their ``mean``, their
            ``max``, or ``all`` three concatenated.
        scaling: ``standard``, ``none``, ``window`` or ``context``, see :mod:`stablernn.nn.preprocessing`.
        window: Steps in the window of ``window`` and ``context`` scaling.
        season: Steps of a season, for ``context`` scaling.
        log: Whether ``context`` scaling takes logarithms.
        mask_channel: Whether further channels of the first layer say which values were observed.
        patch_size: Samples that the first layer reads at once.
        patch_stride: Samples after which the layers advance by one step; ``patch_size`` when omitted.
        patch_embedding: Length of the vector to which a linear map and a GELU take a patch before the layers; 0 for
            none.
        conv_layers: Dilated convolutions over a patch in front of its embedding, see
            :class:`stablernn.nn.convolutions.DilatedConvolutions`; 0 for none.
        conv_channels: Channels of each convolution.
        members: Networks of the ensemble, which differ in their initial weights; their outputs are averaged.
        max_dt: Longest time between two steps, in units of the regular one, of a model for irregular time; None if all
            steps are regular. Only for cells that take ``dt``.
        resample_steps: Samples to which every sequence is resampled over its whole length, with the logarithm of its
            length as a further feature, for classifiers of complete sequences; None to read the samples as they are.
            Such a model cannot read streams.
        head_layers: Layers between the readout and the head: a number is a linear map to as many numbers, a name an
            activation, such as ``(32, "relu")``. Only with one member.
        preset: ``practical`` (ours) or ``paper``, the cell's defaults.
        cell_options: Options of the cell, which override the preset.
        engine: The engine that runs the steps, see :class:`stablernn.StableRNN`.
        inputs: Custom input stage; overrides ``scaling``.
    """

    task: str
    head: nn.Module
    output_names: tuple[str, ...]
    input_name: str = "x"
    every_step: bool = False
    """True if whole sequences have an output at every step, and not only after the last."""
    end_aligned: bool = False
    """True if patches end with the last sample, instead of starting with the first."""
    predict_change: bool = False
    """True if outputs are changes from the last observed value of each channel."""
    takes_resampling: bool = False
    """True if sequences may be resampled to a fixed number of samples."""

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
        conv_layers: int = 0,
        conv_channels: int = 16,
        members: int = 1,
        max_dt: float | None = None,
        resample_steps: int | None = None,
        head_layers: Sequence[int | str] = (),
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
        self.conv_layers = conv_layers
        self.conv_channels = conv_channels
        self.cell_options = dict(cell_options or {})
        if resample_steps is not None and not self.takes_resampling:
            raise ConfigError(
                f"resample_steps is for classifiers of complete sequences, and this model is for '{self.task}', whose "
                "sequences go on; leave it out."
            )
        self.resampling = create_resampling(resample_steps, scaling=scaling, max_dt=max_dt)
        self.scaling = inputs or create_scaling(
            scaling, self.sample_size, window=window, mask_channel=mask_channel, season=season, log=log
        )
        stride = patch_size if patch_stride is None else patch_stride
        self.patches = Patches(self.scaling, patch_size, stride, end_aligned=self.end_aligned)
        self.rnn = Ensemble(
            members,
            cell,
            self.patches.output_size,
            hidden_size,
            num_layers,
            embedding=patch_embedding,
            convolutions=self._convolution_shape(conv_layers, conv_channels) if conv_layers else None,
            dropout=dropout,
            engine=engine,
            preset=preset,
            max_dt=max_dt,
            **self.cell_options,
        )
        self.head_layers = build_head_layers(self._readout_size, head_layers, members)
        self._head_layer_options = list(head_layers)
        # NaN cannot pass through an embedding, whose whole output would be NaN, nor through the state, which holds the
        # samples that one patch shares with the next.
        can_pass_missing = not patch_embedding and self.patches.size == self.patches.stride
        self.scaling.keep_missing = self.rnn.cells[0].takes_missing and can_pass_missing

    @property
    def sample_size(self) -> int:
        """Features of a sample behind the resampling, which adds the length of the sequence to the raw ones."""
        return self.input_size + (self.resampling is not None)

    def feature_scaling(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the scale of each raw feature, ``(input_size,)``."""
        return self.scaling.mean[: self.input_size], self.scaling.scale[: self.input_size]

    @property
    def max_dt(self) -> float | None:
        """Longest time between two steps; None if the model takes regular steps only."""
        return self.rnn.first.max_dt

    @property
    def known_inputs(self) -> dict[str, tuple[int, ...]]:
        """Names of the inputs of :meth:`emit` besides the state, and shapes after the batch. NaN for unknown values."""
        return {}

    def known_input_from_scores(self, name: str, scores: np.ndarray) -> np.ndarray:
        """Return standard scores of one of the ``known_inputs`` as raw values in float32."""
        raise NotImplementedError

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names of the outputs of :meth:`emit`, and their shapes after the batch."""
        raise NotImplementedError

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of ``x`` for one step, after the batch: ``(sample_size,)``, or ``(patch_stride, sample_size)``."""
        return (self.sample_size,) if self.patches.size == 1 else (self.patches.stride, self.sample_size)

    def state_roles(self) -> list[tuple[str, int]]:
        """Return role and length of every state tensor of the flat tuple; all start as zeros."""
        size = self.rnn.output_size
        running = [(f"{statistic} of outputs", size) for statistic in STATISTICS[self.readout]]
        readout = [*running, ("outputs seen", 1)] if running else []
        return [*self.patches.state_roles(), *self.rnn.state_roles(), *readout]

    def initial_state(self, batch_size: int) -> States:
        """Return zeros for each tensor of :meth:`state_roles`."""
        return tuple(self.scaling.mean.new_zeros(batch_size, size) for _, size in self.state_roles())

    def fit_scaling(self, sequences: Iterable[np.ndarray]) -> None:
        """Fit the scaling to the training split's sequences, each ``(time, input_size)``, NaN ignored.

        With ``resample_steps`` each must be a whole sequence.
        """
        self.scaling.fit(sequences if self.resampling is None else self.resampling.fit(sequences))

    def fit_layers(self, x: Tensor, lengths: Tensor) -> None:
        """Fit what the first layers take from their inputs, once the scaling is fitted; most cells take nothing.

        Args:
            x: ``(batch, time, input_size)`` of training sequences, raw units.
            lengths: ``(batch,)``; steps from there on are padding.
        """
        with torch.no_grad():
            features, counts, *_ = self.layer_inputs(x, lengths)
        steps = torch.full((len(x),), features.shape[1]) if counts is None else counts
        self.rnn.fit_inputs(features, steps)

    def mark_fitted(self) -> None:
        """Count every scaling as fitted: for weights of a training run, which may equal those of a new model."""
        self.scaling.mark_fitted()

    def missing_calls(self) -> Iterator[str]:
        """Yield a message for each call that training should have made to fit a scaling, and did not."""
        if not self.scaling.is_fitted or (self.resampling is not None and not self.resampling.is_fitted):
            yield (
                "The model's scaling was never fitted, so that the layers see raw values divided by 1. Call "
                "fit_scaling(sequences) of the model with the training sequences before training."
            )

    def materialize(self) -> list[Weights]:
        """Return each layer's matrices, for steps with ``dt`` if the model takes it."""
        is_timed = self.max_dt is not None
        return [cell.materialize_timed() if is_timed else cell.materialize() for cell in self.rnn.cells]

    def transition(self, weights: Sequence[Weights], x: Tensor, state: States, dt: Tensor | None = None) -> States:
        """Return the flat state after one raw sample, or after one patch of them.

        Args:
            weights: As :meth:`materialize` returned them.
            x: ``(batch, *sample_shape)``.
            state: The flat state before.
            dt: The time from the sample before to each sample, ``(batch,)`` or ``(batch, patch_stride)``.
        """
        patch_state, *_ = self._split(state)
        features, patch_state = self.patches.step(x[:, None] if self.patches.size == 1 else x, patch_state)
        return (*patch_state, *self.advance(weights, features, state[len(patch_state) :], dt))

    def advance(self, weights: Sequence[Weights], features: Tensor, state: States, dt: Tensor | None = None) -> States:
        """Run :meth:`transition` after scaling and patches, and return the states of the layers and of the readout.

        Args:
            weights: As :meth:`materialize` returned them.
            features: The first layer's channels, ``(batch, patches.output_size)``.
            state: The flat state without that of the patches.
            dt: As :meth:`transition` takes it.
        """
        layers = len(self.rnn.state_roles())
        if dt is not None:
            dt = dt[:, None] if self.patches.size == 1 else self.patches.mean_time(dt)
        layer_state = self.rnn.advance(weights, features, state[:layers], dt)
        h = self.rnn.output(layer_state)
        readout_state = state[layers:]
        if readout_state:
            readout_state = step_statistics(self.readout, h, readout_state)
        return (*layer_state, *readout_state)

    def emit(self, state: States, **covariates: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of a state and the ``known_inputs``, in the order of ``output_names``."""
        raise NotImplementedError

    def output_loss(self, state: States, truth: Tensor, **covariates: Tensor) -> Tensor:
        """Return the training loss of the outputs of a state, summed over the batch, without penalty and quantiles.

        Args:
            state: The flat state.
            truth: Class numbers ``(batch,)``, targets ``(batch, horizon, targets)`` in raw units, or the targets of one
                step for a model with ``every_step``; NaN where missing, and for a model with ``every_step`` a class
                below 0.
            covariates: The inputs of :meth:`run` other than the sequences.
        """
        raise NotImplementedError

    def run(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        state: States | None = None,
        dt: Tensor | None = None,
        **covariates: Tensor,
    ) -> tuple[dict[str, Tensor], States]:
        """Return the outputs after the last valid step of each sequence, and the state there.

        Args:
            x: ``(batch, time, input_size)``, raw units, NaN where missing.
            lengths: ``(batch,)``; steps from there on are padding. All steps count when omitted.
            state: The flat state to continue from; zeros when omitted. With ``resample_steps`` it is that of another
                whole sequence.
            dt: ``(batch, time)``, the time from the step before, for a model with ``max_dt``; 1 when omitted.
            covariates: The ``known_inputs``; one that is omitted is unknown.

        Raises:
            ValueError: If an input has another shape, or the model takes no such input.
        """
        check_covariates(covariates, self.known_inputs, len(x))
        final = self.final_state(x, lengths, state, dt)
        return dict(zip(self.output_names, self.emit(final, **covariates), strict=True)), final

    def final_state(
        self, x: Tensor, lengths: Tensor | None = None, state: States | None = None, dt: Tensor | None = None
    ) -> States:
        """Run as :meth:`run` does, and return only the state."""
        check_tensor(x, self.scaling.mean)
        if x.dim() != 3 or x.shape[-1] != self.input_size:
            raise ValueError(
                f"input has shape {tuple(x.shape)}, the model expects input_size={self.input_size} "
                f"(shape (batch, time, {self.input_size}))."
            )
        x, valid = self.resample(x, lengths)
        patch_state, layer_state, readout_state = self._split(self.initial_state(len(x)) if state is None else state)
        # Scaling has no parameters to train.
        with torch.no_grad():
            features, patches, patch_state = self.patches.sequence(x, valid, patch_state)
        if self.max_dt is None and dt is not None:
            raise ConfigError("The model was built for regular steps, got dt; give max_dt when it is built.")
        if self.max_dt is not None:
            # Checked before patches take means, which would hide a negative or a long one.
            dt = x.new_ones(x.shape[:2]) if dt is None else self.rnn.first.checked_dt(dt, x, valid)
            dt = self.patches.time(dt, valid)
        outputs, layer_state = self.rnn.run(features, layer_state, patches, dt, every_output=self.readout != "last")
        if outputs is not None:
            readout_state = sequence_statistics(self.readout, outputs, readout_state, valid_steps(features, patches))
        return (*patch_state, *layer_state, *readout_state)

    def layer_inputs(
        self, x: Tensor, lengths: Tensor | None = None, dt: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, States, Tensor | None]:
        """Return what the first layer reads of whole sequences.

        Args:
            x: As :meth:`run` takes it.
            lengths: As :meth:`run` takes it.
            dt: ``(batch, time)``, for a model with ``max_dt``.

        Returns:
            Its channels ``(batch, steps, channels)``; the number of steps of each sequence, None if all count; the
            state of scaling and patches after the last step; the time of each step, None without ``dt``.
        """
        x, valid = self.resample(x, lengths)
        state, *_ = self._split(self.initial_state(len(x)))
        features, patch_counts, state = self.patches.sequence(x, valid, state)
        return features, patch_counts, state, None if dt is None else self.patches.time(dt, valid)

    def resample(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the samples that patches are made of, ``(batch, time, sample_size)``, and a mask of the valid ones.

        Without ``resample_steps`` they are those of ``x``. The mask is None if all are valid.
        """
        if self.resampling is not None:
            return self.resampling(x, lengths), None
        return x, valid_steps(x, lengths)

    def penalty(self) -> Tensor | None:
        """Return the sum of the cells' penalties for the training loss, or None."""
        return self.rnn.penalty()

    def after_step(self, step: int, total_steps: int) -> None:
        """Let the cells update their parameters after optimizer step ``step`` (from 1) of ``total_steps``.

        See :meth:`stablernn.cells.StableCell.after_step`.
        """
        self.rnn.after_step(step, total_steps)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters behind ``orthogonal`` and unitary matrices, ``vectors`` and all ``other`` ones.

        Vectors are a group of their own in the preset ``practical`` only; papers apply weight decay to everything.
        """
        groups = group_parameters(self)
        if self.preset != "practical":
            return groups
        other = groups["other"]
        vectors = [parameter for parameter in other if parameter.dim() <= 1]
        return {**groups, "other": [parameter for parameter in other if parameter.dim() > 1], "vectors": vectors}

    def member_parameters(self) -> list[list[nn.Parameter]]:
        """Return the groups whose gradients are clipped together: each member's, and the shared parameters if any."""
        heads = getattr(self.head, "maps", None)
        members = [
            [*self.rnn.parameters_of(number), *(heads[number].parameters() if heads is not None else [])]
            for number in range(len(self.rnn))
        ]
        # By identity: comparing tensors would compare their values.
        member_ids = {id(parameter) for parameters in members for parameter in parameters}
        shared = [parameter for parameter in self.parameters() if id(parameter) not in member_ids]
        return [*members, shared] if shared else members

    def config(self) -> dict[str, Any]:
        """Return the options from which :func:`build_model` builds this model again, as JSON types."""
        package = cell_info(self.rnn.first.cell).package
        return {
            "task": self.task,
            "cell": self.rnn.first.cell,
            **({} if package == OWN_PACKAGE else {"cell_package": package}),
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
            "conv_layers": self.conv_layers,
            "conv_channels": self.conv_channels,
            "members": len(self.rnn),
            "max_dt": self.max_dt,
            # Older releases do not know the keys.
            **({} if self.resampling is None else {"resample_steps": self.resampling.steps}),
            **({"head_layers": self._head_layer_options} if self._head_layer_options else {}),
            "preset": self.preset,
            "cell_options": self.cell_options,
        }

    @property
    def feature_size(self) -> int:
        """Input size of the head of each member."""
        sizes = [layer for layer in self._head_layer_options if isinstance(layer, int)]
        return sizes[-1] if sizes else self._readout_size

    @property
    def _readout_size(self) -> int:
        return self.rnn.first.output_size * (3 if self.readout == "all" else 1)

    def _convolution_shape(self, layers: int, width: int) -> ConvolutionShape:
        samples, channels = self.patches.size, self.scaling.output_size
        return ConvolutionShape(samples, channels, self.patches.output_size - samples * channels, layers, width)

    def _features(self, state: States) -> Tensor:
        """Return the input of the heads, ``(batch, members * feature_size)``."""
        features: Tensor = self.head_layers(self._readout(state))
        return features

    def _readout(self, state: States) -> Tensor:
        """Return the statistics of the outputs so far that the head reads, of each member."""
        _, layer_state, readout_state = self._split(state)
        if self.readout in ("mean", "max"):
            return readout_state[0]
        last = self.rnn.output(layer_state)
        if self.readout == "last":
            return last
        # From (last, mean, max) of all members to all three of each member.
        chunks = [tensor.chunk(len(self.rnn), dim=-1) for tensor in (last, *readout_state[:2])]
        return torch.cat([chunk for member in zip(*chunks, strict=True) for chunk in member], dim=-1)

    def _split(self, state: States) -> tuple[States, States, States]:
        """Split a flat state into those of patches, layers and readout."""
        first = len(self.patches.state_roles())
        second = first + len(self.rnn.state_roles())
        return state[:first], state[first:second], state[second:]
