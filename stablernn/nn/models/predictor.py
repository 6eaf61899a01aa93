"""Prediction of the next value, or of a target, at every step of a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.intervals import Box
from stablernn.data.step_data import NO_TARGET, Output
from stablernn.errors import ConfigError, did_you_mean
from stablernn.nn.layers import check_tensor
from stablernn.nn.models._base import NetworkOptions, SequenceModel, States
from stablernn.nn.preprocessing import Scaling
from stablernn.nn.segments import valid_steps

OUTPUTS: tuple[Output, ...] = ("categorical", "bernoulli", "real")


class Tokens(Scaling):
    """An input stage for tokens, whole numbers, each of which becomes a unit vector or a learned embedding.

    Args:
        vocabulary: Number of different tokens, 1 or more.
        embedding_size: Length of the learned vector; 0 for unit vectors, one channel a token.
    """

    kind = "tokens"
    has_channel_range = False
    numbers: Tensor

    def __init__(self, vocabulary: int, embedding_size: int) -> None:
        super().__init__(0)
        if vocabulary < 1 or embedding_size < 0:
            raise ValueError(
                "Tokens need a vocabulary of 1 or more and an embedding_size of 0 or more, "
                f"got {vocabulary} and {embedding_size}."
            )
        self.vocabulary = vocabulary
        self.embedding_size = embedding_size
        self.embedding = nn.Embedding(vocabulary, embedding_size) if embedding_size else None
        self.register_buffer("numbers", torch.arange(vocabulary), persistent=False)

    @property
    def output_size(self) -> int:
        return self.embedding_size or self.vocabulary

    def state_roles(self) -> list[tuple[str, int]]:
        return []

    def fit(self, sequences: Iterable[np.ndarray]) -> None:
        raise ConfigError("Tokens are not scaled; there is nothing to fit.")

    def step(self, x: Tensor, state: States) -> tuple[Tensor, States]:
        """Return the channels of tokens of any shape."""
        if self.embedding is None:
            return (x[..., None] == self.numbers).to(self.mean.dtype), ()
        channels: Tensor = self.embedding(x)
        return channels, ()

    def sequence(self, x: Tensor, state: States, valid: Tensor | None) -> tuple[Tensor, States]:
        return self.step(x, state)

    def channel_range(self, inputs: Box) -> tuple[Box, Box]:
        raise ConfigError("The model reads tokens, which have no range. Leave the range of inputs out.")


class SequencePredictor(SequenceModel):
    """A prediction at every step, from the inputs up to and including that step.

    Args:
        cell: A key of the catalog, see :func:`stablernn.list_cells`.
        input_size: Raw features per time step; of tokens the number of different ones.
        num_outputs: Classes, binary targets or numbers to predict.
        hidden_size: Length of each layer's state.
        output: ``categorical``: logits of classes that exclude each other. ``bernoulli``: logits of binary targets, any
            number of which may be 1. ``real``: numbers, in raw units.
        tokens: Whether inputs are whole numbers from 0 to ``input_size - 1``.
        embedding_size: Length of the learned embedding of a token; 0: a unit vector.
        predict_change: Whether numbers are predicted as the change from the last observed value of the same channel, in
            units of its scaling; else in units of the targets' own mean and deviation.
        saturation: Whether real outputs end at the limits that :meth:`fit_targets` finds, such as those of a sensor.
        options: Those of :class:`SequenceModel`, of which ``readout``, ``scaling`` and ``patch_size`` can only have
            their defaults. Several ``members`` have one head, of real outputs only.

    Shape:
        - input: ``(batch, time, input_size)`` in raw units, NaN where missing, or int64 ``(batch, time)`` of tokens
        - lengths: ``(batch,)`` integers, or None if every step counts
        - dt: ``(batch, time)``, the time from the step before, for a model with ``max_dt``
        - output: logits or mean, ``(batch, time, num_outputs)``; over padding that of the last valid step repeats

    Raises:
        ConfigError: If an option is not among those listed.
        ValueError: If a size is out of range, or an input has another shape or a token that is out of range.

    Examples:
        >>> model = SequencePredictor("gru", input_size=50, num_outputs=50, tokens=True)
        >>> model(torch.zeros(2, 30, dtype=torch.int64)).shape
        torch.Size([2, 30, 50])
    """

    task = "predict-next"
    every_step = True
    lower: Tensor
    """Smallest value of each output, ``(num_outputs,)``, minus infinity for none; with ``saturation``."""
    upper: Tensor
    """Largest value of each output, likewise."""

    def __init__(
        self,
        cell: str,
        input_size: int,
        num_outputs: int,
        hidden_size: int = 64,
        *,
        output: Output = "categorical",
        tokens: bool = False,
        embedding_size: int = 0,
        predict_change: bool = False,
        saturation: bool = False,
        **options: Unpack[NetworkOptions],
    ) -> None:
        if output not in OUTPUTS:
            raise ConfigError(
                f"Unknown output '{output}'.{did_you_mean(output, OUTPUTS)} It is one of {', '.join(OUTPUTS)}."
            )
        for name, only in (("readout", "last"), ("scaling", "standard")):
            value = options.get(name, only)
            if value != only:
                raise ConfigError(f"An answer at every step has {name}='{only}', got '{value}'.")
        if options.get("patch_size", 1) != 1:
            raise ConfigError(f"An answer at every step has patch_size=1, got {options.get('patch_size')}.")
        if output != "real" and (saturation or options.get("members", 1) != 1):
            raise ConfigError(
                f"Several members and saturation are for real outputs, got {output} ones with "
                f"members={options.get('members', 1)} and saturation={saturation}. Leave them out."
            )
        if tokens and options.get("mask_channel"):
            raise ConfigError("mask_channel tells which numbers are missing; tokens have none. Leave it out.")
        if embedding_size and not tokens:
            raise ConfigError(f"embedding_size is for tokens, got embedding_size={embedding_size} for numbers.")
        if predict_change and saturation:
            raise ConfigError(
                "saturation is for outputs that are predicted themselves, got predict_change. Leave one out."
            )
        if predict_change and (output != "real" or tokens or num_outputs != input_size):
            raise ConfigError(
                "predict_change needs outputs that are the input's channels, one step on: real, and as many as inputs."
            )
        # Tokens have nothing to scale; the embedding takes the place of the scaling.
        inputs = Tokens(input_size, embedding_size) if tokens else None
        super().__init__(cell, input_size, hidden_size, inputs=inputs, **options)
        smallest = 2 if output == "categorical" else 1
        if num_outputs < smallest:
            raise ValueError(f"num_outputs must be {smallest} or more for a {output} output, got {num_outputs}.")
        self.num_outputs = num_outputs
        self.output: Output = output
        self.tokens = tokens
        self.embedding_size = embedding_size
        self.predict_change = predict_change
        self.input_name = "tokens" if tokens else "x"
        self.output_names = ("mean",) if output == "real" else ("logits",)
        # Of several members a mean, or another linear map, of their outputs.
        self.head = nn.Linear(len(self.rnn) * self.feature_size, num_outputs)
        self.targets = Scaling(num_outputs if output == "real" else 0)
        self.saturation = saturation
        if saturation:
            self.register_buffer("lower", torch.full((num_outputs,), -torch.inf))
            self.register_buffer("upper", torch.full((num_outputs,), torch.inf))

    def fit_targets(self, targets: Iterable[np.ndarray]) -> None:
        """Fit the initial predictions to the training split's targets: to their mean, or to their frequencies.

        Args:
            targets: One array a sequence: whole numbers ``(time,)``, or numbers ``(time, num_outputs)``, NaN ignored.
        """
        if self.output == "real":
            arrays = list(targets)
            self.targets.fit(arrays)
            if self.saturation:
                lower, upper = saturation_levels(np.concatenate(arrays))
                self.lower.copy_(torch.from_numpy(lower))
                self.upper.copy_(torch.from_numpy(upper))
            return
        frequencies = target_frequencies(targets, self.num_outputs, self.output)
        # Of a binary target the logit is log(p) - log(1 - p); softmax needs log(p) alone.
        logits = np.log(frequencies)
        if self.output == "bernoulli":
            logits = logits - np.log1p(-frequencies)
        with torch.no_grad():
            self._linear.bias.copy_(torch.from_numpy(logits))

    def mark_fitted(self) -> None:
        super().mark_fitted()
        self.targets.mark_fitted()

    def missing_calls(self) -> Iterator[str]:
        yield from super().missing_calls()
        # A predicted change is in units of the inputs: the scaling of the targets is not used.
        if not (self.predict_change or self.targets.is_fitted):
            yield (
                "The scaling of the model's targets was never fitted, so that answers are in units of 1. Call "
                "fit_targets(targets) of the model with the training targets before training."
            )

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self.output_names, (self.num_outputs,))

    def forward(self, x: Tensor, lengths: Tensor | None = None, dt: Tensor | None = None) -> Tensor:
        return self.answers(x, lengths, dt=dt)[0]

    def answers(
        self, x: Tensor, lengths: Tensor | None = None, state: States | None = None, dt: Tensor | None = None
    ) -> tuple[Tensor, States]:
        """Return the output after every step, ``(batch, time, num_outputs)``, and the state after the last valid one.

        Args:
            x: As the class describes it.
            lengths: ``(batch,)``; steps from there on are padding. All steps count when omitted.
            state: The flat state to continue from; zeros when omitted.
            dt: ``(batch, time)``, for a model with ``max_dt``; 1 when omitted.
        """
        self._check_input(x)
        if self.max_dt is None and dt is not None:
            raise ConfigError("The model was built for regular steps, got dt; give max_dt when it is built.")
        if self.max_dt is not None and dt is None:
            dt = self._linear.weight.new_ones(x.shape[:2])
        valid = valid_steps(x, lengths)
        scaled_state, layer_state, _ = self._split(self.initial_state(len(x)) if state is None else state)
        last_values = None
        if self.predict_change:
            # The last observed values alone: the channels of the layers may include a mask, or NaN.
            with torch.no_grad():
                last_values, _ = self.scaling.filled(x, scaled_state, valid)
        scaled, scaled_state = self.scaling.sequence(x, scaled_state, valid)
        outputs, layer_state = self.rnn.run(scaled, layer_state, None if valid is None else lengths, dt)
        assert outputs is not None
        return self._to_raw_units(self._linear(self.head_layers(outputs)), last_values), (*scaled_state, *layer_state)

    def emit(self, state: States, **covariates: Tensor) -> tuple[Tensor, ...]:
        last_values = self._split(state)[0][0] if self.predict_change else None
        return (self._to_raw_units(self._linear(self._features(state)), last_values),)

    def output_loss(self, state: States, truth: Tensor, **covariates: Tensor) -> Tensor:
        answer = self.emit(state)[0]
        if self.output == "categorical":
            return nn.functional.cross_entropy(answer, truth, ignore_index=NO_TARGET, reduction="sum")
        target = truth.to(answer.dtype)
        is_observed = ~torch.isnan(target)
        filled = torch.where(is_observed, target, 0)
        if self.output == "bernoulli":
            losses = nn.functional.binary_cross_entropy_with_logits(answer, filled, reduction="none")
        else:
            losses = (answer - filled).square()
        return torch.where(is_observed, losses, 0).sum()

    def run(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        state: States | None = None,
        dt: Tensor | None = None,
        **covariates: Tensor,
    ) -> tuple[dict[str, Tensor], States]:
        answers, final = self.answers(x, lengths, state, dt)
        return {self.output_names[0]: answers}, final

    def final_state(
        self, x: Tensor, lengths: Tensor | None = None, state: States | None = None, dt: Tensor | None = None
    ) -> States:
        return self.answers(x, lengths, state, dt)[1]

    def layer_inputs(
        self, x: Tensor, lengths: Tensor | None = None, dt: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, States, Tensor | None]:
        valid = valid_steps(x, lengths)
        state, *_ = self._split(self.initial_state(len(x)))
        features, state = self.scaling.sequence(x, state, valid)
        return features, None if valid is None else lengths, state, dt

    def config(self) -> dict[str, Any]:
        return super().config() | {
            "scaling": "standard",
            "num_outputs": self.num_outputs,
            "output": self.output,
            "tokens": self.tokens,
            "embedding_size": self.embedding_size,
            "predict_change": self.predict_change,
            # Older releases do not know the key.
            **({"saturation": True} if self.saturation else {}),
        }

    @property
    def _linear(self) -> nn.Linear:
        assert isinstance(self.head, nn.Linear)
        return self.head

    def _to_raw_units(self, prediction: Tensor, last_values: Tensor | None) -> Tensor:
        """Return numbers in raw units, and logits as they are."""
        if self.output != "real":
            return prediction
        if last_values is None:
            numbers = self.targets.mean + self.targets.scale * prediction
            return torch.minimum(torch.maximum(numbers, self.lower), self.upper) if self.saturation else numbers
        return self.scaling.mean + self.scaling.scale * (last_values + prediction)

    def _check_input(self, x: Tensor) -> None:
        """Refuse an input of another dtype or shape, or a token that is out of range.

        Raises:
            ValueError: If it is one.
        """
        if not self.tokens:
            check_tensor(x, self._linear.weight)
            if x.dim() != 3 or x.shape[-1] != self.input_size:
                raise ValueError(
                    f"input has shape {tuple(x.shape)}, the model expects input_size={self.input_size} "
                    f"(shape (batch, time, {self.input_size}))."
                )
            return
        if x.dtype != torch.int64:
            raise ValueError(f"tokens must be torch.int64, got {x.dtype}; convert them with .long().")
        if x.dim() != 2:
            raise ValueError(f"input has shape {tuple(x.shape)}, the model expects tokens (shape (batch, time)).")
        # aminmax refuses an empty tensor.
        smallest, largest = (int(end) for end in x.aminmax()) if x.numel() else (0, 0)
        if smallest < 0 or largest >= self.input_size:
            invalid = smallest if smallest < 0 else largest
            raise ValueError(f"tokens must be from 0 to {self.input_size - 1}, got {invalid}.")


SATURATED_SHARE = 0.01
"""Share of the values at the smallest or the largest one, exactly, that makes it a limit of the sensor or machine."""


def saturation_levels(targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values at which recorded outputs end, minus infinity and infinity where they do not.

    Args:
        targets: ``(time, outputs)``, NaN where missing.

    Returns:
        The lower and the upper limit of each output, ``(outputs,)``. An output of one value has none.
    """
    ends = np.nanmin(targets, axis=0), np.nanmax(targets, axis=0)
    observed = (~np.isnan(targets)).sum(axis=0)
    lower, upper = (
        np.where(((targets == end).sum(axis=0) > SATURATED_SHARE * observed) & (ends[0] < ends[1]), end, outside)
        for end, outside in zip(ends, (-np.inf, np.inf), strict=True)
    )
    return lower, upper


def target_frequencies(targets: Iterable[np.ndarray], outputs: int, output: Output) -> np.ndarray:
    """Return the frequency of each class, or of each binary target being 1, by add-one smoothing: none is 0 or 1.

    Args:
        targets: One array a sequence: whole numbers ``(time,)``, or ``(time, outputs)``; steps without a target are
            left out.
        outputs: Number of classes or binary targets.
        output: ``categorical`` or ``bernoulli``.

    Returns:
        float64 ``(outputs,)``.
    """
    counts, steps = np.zeros(outputs), 0
    for target in targets:
        if output == "categorical":
            observed = target[target != NO_TARGET].astype(np.int64)
            counts += np.bincount(observed, minlength=outputs)
        else:
            observed = target[~np.isnan(target).any(axis=1)]
            counts += observed.sum(axis=0, dtype=np.float64)
        steps += len(observed)
    # One of each class is added, of a binary target one 0 and one 1.
    return (counts + 1) / (steps + (outputs if output == "categorical" else 2))
