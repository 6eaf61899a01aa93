"""Forecasting: the next values of a series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.data.arrays import Samples
from stablernn.errors import ConfigError, did_you_mean
from stablernn.nn.ensemble import Heads
from stablernn.nn.models._base import NetworkOptions, SequenceModel, States, check_covariates
from stablernn.nn.preprocessing import ContextScaling

_KNOWN_HIDDEN = 32
"""Hidden units of the network on the known values of a future step."""
_CHOICES = {"head": ("direct", "recursive"), "skip": ("none", "linear"), "anchor": ("last", "mean")}


class Forecaster(SequenceModel):
    """A forecast of the next ``horizon`` values of some of the channels, with quantiles.

    The head predicts the change from where :meth:`Scaling.anchor` starts, in units of the scaling: a head of zeros is
    the naive forecast, or the forecast of the linear skip. ``anchor`` can choose another start.

    Args:
        cell: A key of the catalog, see :func:`stablernn.list_cells`.
        input_size: Raw channels per time step.
        horizon: Steps ahead, 1 or more.
        hidden_size: Length of each layer's state.
        target_indices: The channels to forecast; the first one by default.
        quantiles: Levels in (0, 1), increasing; may be empty.
        head: ``direct``: all steps at once. ``recursive``: one step, from which the next is made by taking the forecast
            for a value; every channel must be a target or known in the future.
        skip: ``linear`` adds a linear map of the values in the window, one for all targets, to the layers' forecast;
            only with the scaling ``context``. ``none`` adds nothing.
        anchor: Value from which the head predicts a change: ``last``, that of :meth:`Scaling.anchor`; ``mean``, the
            mean of the training data, for heads that forecast the value itself; only with the scalings ``standard``,
            ``none`` and ``log``.
        non_negative: Whether mean and quantiles are cut off at zero, or with the scaling ``context`` at a share of the
            least value in the window, see :meth:`fit_lowest_share`; only with the head ``direct``.
        future_indices: Channels whose values at the steps ahead are known.
        static_size: Number of static covariates of each series.
        head_dropout: Share of the head's input zeroed in training, 0 to 1.
        options: Those of :class:`SequenceModel`, from ``num_layers`` on.

    Shape:
        - input: ``(batch, time, input_size)`` in raw units, NaN where missing
        - lengths: ``(batch,)`` integers, or None when every step counts
        - dt: ``(batch, time)``, the time from the step before, for a model with ``max_dt``
        - static: ``(batch, static_size)``, if there is any; NaN if unknown
        - future: ``(batch, horizon, len(future_indices))``, if there is any; NaN if unknown
        - output: mean, ``(batch, horizon, targets)`` in raw units

    Raises:
        ConfigError: If an option is not among those listed, or two are incompatible.
        ValueError: If a size is out of range, or an input has another number of features.

    Examples:
        >>> model = Forecaster("gru", input_size=2, horizon=12)
        >>> model(torch.zeros(3, 48, 2)).shape
        torch.Size([3, 12, 1])
    """

    task = "forecast"
    # A forecast starts after the last sample, with which a patch must end.
    end_aligned = True
    output_names: tuple[str, ...] = ("mean", "quantiles")
    static_mean: Tensor
    static_scale: Tensor
    offsets: Tensor
    """Added to the quantiles by calibration, ``(horizon, targets, quantiles)``: of a direct head in units of the
    scaling, of a recursive one in raw units; 0 without calibration."""
    lowest_share: Tensor
    """Least forecast as a share of the least value in the window, from 0 to 1."""

    def __init__(
        self,
        cell: str,
        input_size: int,
        horizon: int,
        hidden_size: int = 64,
        *,
        target_indices: Sequence[int] = (0,),
        quantiles: Sequence[float] = (0.1, 0.5, 0.9),
        head: str = "direct",
        skip: str = "none",
        anchor: str = "last",
        non_negative: bool = False,
        future_indices: Sequence[int] = (),
        static_size: int = 0,
        head_dropout: float = 0.0,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__(cell, input_size, hidden_size, **options)
        if horizon < 1:
            raise ValueError(f"horizon must be 1 or more, got {horizon}.")
        if static_size < 0:
            raise ValueError(f"static_size must be 0 or more, got {static_size}.")
        targets, future = [int(index) for index in target_indices], [int(index) for index in future_indices]
        check_channels(targets, future, input_size)
        levels = list(quantiles)
        check_levels(levels)
        check_choices(head=head, skip=skip, anchor=anchor)
        if head == "recursive":
            check_recursive([*targets, *future], input_size, self.patches.stride)
            if non_negative:
                # The server adds the offsets of a recursive head after the graph.
                raise ConfigError("non_negative=True goes with head='direct', got head='recursive'; take one of them.")
        if anchor == "mean" and self.scaling.kind not in ("standard", "none", "log"):
            raise ConfigError(
                "anchor='mean' starts from the mean of the training data, which only the scalings 'standard', 'none' "
                f"and 'log' use, got scaling='{self.scaling.kind}'."
            )
        self.horizon = horizon
        self.target_indices = targets
        self.future_indices = future
        self.quantiles = levels
        self.head_kind = head
        self.anchor = anchor
        self.non_negative = non_negative
        self.static_size = static_size
        self.steps = horizon if head == "direct" else 1
        if not levels:
            self.output_names = ("mean",)
        size, answers = self.feature_size, len(targets) * (1 + len(levels))
        self.head = Heads(len(self.rnn), size + static_size, self.steps * answers, head_dropout)
        self.skip = self._build_skip() if skip == "linear" else None
        self.known: nn.Sequential | None = None
        if future:
            inner = nn.Linear(len(self.rnn) * size + static_size + len(future), _KNOWN_HIDDEN)
            self.known = nn.Sequential(inner, nn.Tanh(), nn.Linear(_KNOWN_HIDDEN, answers))
        if self.skip is not None:
            # Training starts from the skip's forecast and nothing else.
            for layer in [self.skip, *self._last_layers()]:
                for parameter in layer.parameters():
                    nn.init.zeros_(parameter)
        self._was_static_fitted = False
        self.register_buffer("static_mean", torch.zeros(static_size))
        self.register_buffer("static_scale", torch.ones(static_size))
        self.register_buffer("offsets", torch.zeros(horizon, len(targets), len(levels)))
        if non_negative and isinstance(self.scaling, ContextScaling):
            self.register_buffer("lowest_share", torch.zeros(()))

    @property
    def known_inputs(self) -> dict[str, tuple[int, ...]]:
        static: dict[str, tuple[int, ...]] = {"static": (self.static_size,)} if self.static_size else {}
        return static | ({"future": (self.steps, len(self.future_indices))} if self.future_indices else {})

    def known_input_from_scores(self, name: str, scores: np.ndarray) -> np.ndarray:
        if name == "future":
            return self.scaling.from_scores(scores, self.future_indices)
        raw: np.ndarray = self.static_mean.numpy() + self.static_scale.numpy() * scores
        return raw.astype(np.float32)

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        mean = (self.steps, len(self.target_indices))
        return {name: mean if name == "mean" else (*mean, len(self.quantiles)) for name in self.output_names}

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, dt: Tensor | None = None, **covariates: Tensor
    ) -> Tensor:
        return self.run(x, lengths, None, dt, **covariates)[0]["mean"]

    def run(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        state: States | None = None,
        dt: Tensor | None = None,
        **covariates: Tensor,
    ) -> tuple[dict[str, Tensor], States]:
        shapes = self.known_inputs
        # The shape of known_inputs is that of one emission, of a single step for a recursive head.
        if "future" in shapes:
            shapes["future"] = (self.horizon, len(self.future_indices))
        check_covariates(covariates, shapes, len(x))
        final = self.final_state(x, lengths, state, dt)
        if self.head_kind == "direct":
            return dict(zip(self.output_names, self.emit(final, **covariates), strict=True)), final
        return self._recursive_outputs(final, **covariates), final

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the groups of every model, and those of the linear ``skip``."""
        groups = super().parameter_groups()
        if self.skip is None:
            return groups
        skip_ids = {id(parameter) for parameter in self.skip.parameters()}
        other = [parameter for parameter in groups["other"] if id(parameter) not in skip_ids]
        return {**groups, "other": other, "skip": list(self.skip.parameters())}

    def fit_static(self, static: np.ndarray) -> None:
        """Fit the scaling of the static covariates to those of the training series, ``(series, static_size)``."""
        if not self.static_size:
            return
        values = np.asarray(static, dtype=np.float64)
        is_observed = ~np.isnan(values)
        count = is_observed.sum(axis=0).clip(1)
        mean = np.where(is_observed, values, 0).sum(axis=0) / count
        deviation = np.sqrt((np.where(is_observed, values - mean, 0) ** 2).sum(axis=0) / count)
        self.static_mean.copy_(torch.from_numpy(mean))
        self.static_scale.copy_(torch.from_numpy(np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0)))
        self._was_static_fitted = True

    @property
    def is_static_fitted(self) -> bool:
        """True if :meth:`fit_static` was called, loaded weights differ from a new model's, or there are none to fit."""
        has_values = bool((self.static_mean != 0).any() or (self.static_scale != 1).any())
        return self._was_static_fitted or has_values or not self.static_size

    def mark_fitted(self) -> None:
        super().mark_fitted()
        self._was_static_fitted = True

    def missing_calls(self) -> Iterator[str]:
        yield from super().missing_calls()
        if not self.is_static_fitted:
            yield (
                "The scaling of the model's static covariates was never fitted, so that they are divided by 1. Call "
                "fit_static(static) of the model with those of the training series before training."
            )

    def changes(self, state: States, **covariates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each member's forecast change, location and scale: a forecast is ``location + scale * change``.

        Returns:
            The change, ``(batch, members, steps, targets, 1 + quantiles)`` with the mean first, and location and scale,
            ``(batch, 1, targets)``, in the units of :meth:`Scaling.transform`.
        """
        features = self._features(state)
        static = self._static(features, covariates.get("static"))
        shape = (self.steps, len(self.target_indices), 1 + len(self.quantiles))
        head_input = features if static is None else _append_to_members(features, static, len(self.rnn))
        flat: Tensor = self.head(head_input)
        change = flat.reshape(-1, len(self.rnn), *shape)
        if self.known is not None:
            change = change + self._known_change(features, static, covariates.get("future"))[:, None]
        scaling_state = self.patches.split(self._split(state)[0])[0]
        if self.skip is None:
            location, scale = self.scaling.anchor(scaling_state)
        else:
            assert isinstance(self.scaling, ContextScaling)
            location, scale, context = self.scaling.anchored_context(scaling_state)
            change = change + self._skip_change(context)[:, None, :, :, None]
        if self.anchor == "mean":
            location = self.scaling.mean.expand_as(location)
        return change, location[:, None, self.target_indices], scale[:, None, self.target_indices]

    def skip_change(self, state: States) -> Tensor:
        """Return the linear skip's forecast, ``(batch, steps, targets)``, in units of the scaling."""
        assert self.skip is not None
        assert isinstance(self.scaling, ContextScaling)
        return self._skip_change(self.scaling.context(self.patches.split(self._split(state)[0])[0]))

    def _skip_change(self, context: Tensor) -> Tensor:
        assert self.skip is not None
        linear: Tensor = self.skip(context[:, :, self.target_indices].transpose(1, 2))
        return linear.transpose(1, 2)

    def shrink_mean(self, share: float) -> None:
        """Multiply the heads' forecast of the mean by ``share``; quantiles keep their distance from it."""
        shape = (len(self.target_indices), 1 + len(self.quantiles))
        with torch.no_grad():
            for layer in self._last_layers():
                for parameter in (layer.weight, layer.bias):
                    # Rows are (steps, targets, 1 + quantiles) with the mean first; a view writes to the parameter.
                    outputs = parameter.view(-1, *shape, *parameter.shape[1:])
                    outputs -= (1 - share) * outputs[:, :, :1]

    def emit(self, state: States, **covariates: Tensor) -> tuple[Tensor, ...]:
        change, location, scale = self.changes(state, **covariates)
        # A sum: the exporter would name a node of mean() like the output, and names in a graph are unique.
        average = change[:, 0] if len(self.rnn) == 1 else change.sum(dim=1) / len(self.rnn)
        lowest = self._lowest(state)
        mean = self._raw(location + scale * average[..., 0], lowest)
        if not self.quantiles:
            return (mean,)
        # Sorting keeps quantiles from crossing; it never raises the pinball loss.
        levels = average[..., 1:].sort(dim=-1).values
        if self.head_kind == "direct":
            # An offset was fitted to the quantile of its rank, and may move it beyond its neighbor.
            levels = (levels + self.offsets).sort(dim=-1).values
        raw_levels = self._raw(location[..., None] + scale[..., None] * levels, lowest[..., None])
        return mean, raw_levels

    def _raw(self, forecast: Tensor, lowest: Tensor) -> Tensor:
        """Return forecasts in units of the scaling in raw units, cut off below."""
        raw = self.scaling.inverse(forecast)
        return raw.maximum(lowest) if self.non_negative else raw

    def _lowest(self, state: States) -> Tensor:
        """Return the least forecast in raw units where there is one, ``(batch, 1, targets)`` or ``(1,)``."""
        if not (self.non_negative and isinstance(self.scaling, ContextScaling)):
            return self.offsets.new_zeros(1)
        lowest = self.scaling.steady_lowest(self.patches.split(self._split(state)[0])[0])[:, None, self.target_indices]
        return self.lowest_share * lowest.clamp_min(0.0)

    def fit_lowest_share(self, samples: Iterable[Samples]) -> None:
        """Fit how far below the least value of a window a forecast may fall, unless that lies in the last season.

        In 99 % of such training windows no value ahead is below so many times the least one, with one more window that
        falls to zero, so that few windows say little; and a tenth more is left for what was not seen. Data that fall to
        zero have a share of 0, which cuts forecasts off at zero.

        Args:
            samples: Parts of the training windows: x in raw units, y ``(n, horizon, targets)``.
        """
        if not (self.non_negative and isinstance(self.scaling, ContextScaling)):
            return
        ratios = [np.zeros(1)]
        for x, _, y, *_ in samples:
            window, season = x[:, -self.scaling.window :, self.target_indices], self.scaling.season
            before, latest, ahead = (
                np.fmin.reduce(part, axis=1, initial=np.inf) for part in (window[:, :-season], window[:, -season:], y)
            )
            is_steady = (before > 0) & (before < latest) & np.isfinite(ahead)
            ratios.append(ahead[is_steady] / before[is_steady])
        share = float(np.quantile(np.concatenate(ratios), 0.01))
        self.lowest_share.fill_(0.9 * min(1.0, share))

    def output_loss(self, state: States, truth: Tensor, **covariates: Tensor) -> Tensor:
        # A recursive head answers one step at a time.
        if "future" in covariates:
            covariates["future"] = covariates["future"][:, : self.steps]
        change, location, scale = self.changes(state, **covariates)
        target = truth[:, : self.steps].to(change.dtype)
        is_observed = ~torch.isnan(target)
        # 1 stands in for missing targets: a logarithm of it is finite, and the gradient holds no NaN.
        filled = self.scaling.transform(torch.where(is_observed, target, 1), self.target_indices)
        target_change = torch.where(is_observed, (filled - location) / scale, 0)
        return (target_change[:, None] - change[..., 0] * is_observed[:, None]).abs().sum()

    def config(self) -> dict[str, Any]:
        return super().config() | {
            "horizon": self.horizon,
            "target_indices": self.target_indices,
            "quantiles": self.quantiles,
            "head": self.head_kind,
            "skip": "none" if self.skip is None else "linear",
            # Older releases do not know the key.
            **({} if self.anchor == "last" else {"anchor": self.anchor}),
            **({"non_negative": True} if self.non_negative else {}),
            "future_indices": self.future_indices,
            "static_size": self.static_size,
            "head_dropout": self.head.dropout,
        }

    def _last_layers(self) -> list[nn.Linear]:
        """Return the last linear maps of the heads and of the network on known values."""
        layers = [*self.head.modules(), *([] if self.known is None else [self.known[-1]])]
        return [layer for layer in layers if isinstance(layer, nn.Linear)]

    def _build_skip(self) -> nn.Linear:
        if not isinstance(self.scaling, ContextScaling):
            raise ConfigError(
                "skip='linear' reads the values that the scaling 'context' remembers, got "
                f"scaling='{self.scaling.kind}'."
            )
        return nn.Linear(self.scaling.window, self.steps, bias=False)

    def roll_out(self, state: States, **covariates: Tensor) -> Iterable[tuple[States, dict[str, Tensor]]]:
        """Yield the steps of a recursive forecast: the state that each starts from, and its covariates."""
        weights = self.materialize()
        future = covariates.pop("future", None)
        for step in range(self.horizon):
            ahead = None if future is None else future[:, step]
            inputs = covariates if ahead is None else {**covariates, "future": ahead[:, None]}
            yield state, inputs
            if step + 1 < self.horizon:
                mean = self.emit(state, **inputs)[0][:, 0]
                # The forecast and the known channels are the next sample.
                x = mean.new_full((len(mean), self.input_size), torch.nan)
                x[:, self.target_indices] = mean
                if ahead is not None:
                    x[:, self.future_indices] = ahead
                sample = x if self.patches.size == 1 else x[:, None]
                dt = None if self.max_dt is None else mean.new_ones(len(mean), *sample.shape[1:-1])
                state = self.transition(weights, sample, state, dt)

    def _recursive_outputs(self, state: States, **covariates: Tensor) -> dict[str, Tensor]:
        """Return the outputs of all steps of a recursive forecast, with calibrated quantiles."""
        emissions = [self.emit(start, **inputs) for start, inputs in self.roll_out(state, **covariates)]
        outputs = {name: torch.cat(steps, dim=1) for name, *steps in zip(self.output_names, *emissions, strict=True)}
        if self.quantiles:
            # Offsets in raw units may make quantiles cross.
            outputs["quantiles"] = (outputs["quantiles"] + self.offsets).sort(dim=-1).values
        return outputs

    def _static(self, features: Tensor, static: Tensor | None) -> Tensor | None:
        """Return the scaled static covariates, 0 (their mean) for unknown ones; None if the model takes none."""
        if not self.static_size:
            return None
        if static is None:
            return features.new_zeros(len(features), self.static_size)
        return _nan_to_zero((static - self.static_mean) / self.static_scale)

    def _known_change(self, features: Tensor, static: Tensor | None, future: Tensor | None) -> Tensor:
        """Return the change by known values of the steps ahead, ``(batch, steps, targets, 1 + quantiles)``."""
        assert self.known is not None
        channels = len(self.future_indices)
        if future is None:
            ahead = features.new_zeros(len(features), self.steps, channels)
        else:
            mean, scale = self.scaling.mean[self.future_indices], self.scaling.scale[self.future_indices]
            ahead = _nan_to_zero((self.scaling.transform(future, self.future_indices) - mean) / scale)
        context = features if static is None else torch.cat([features, static], dim=-1)
        # (batch, steps, features): every step ahead sees the same context.
        repeated = context[:, None].expand(-1, self.steps, -1)
        change: Tensor = self.known(torch.cat([repeated, ahead], dim=-1))
        return change.reshape(*change.shape[:-1], len(self.target_indices), 1 + len(self.quantiles))


def _nan_to_zero(scaled: Tensor) -> Tensor:
    return torch.where(torch.isnan(scaled), 0.0, scaled)


def _append_to_members(features: Tensor, static: Tensor, members: int) -> Tensor:
    """Append the static covariates to each member's features, ``(batch, members * (features + static))``."""
    member_inputs = [torch.cat([chunk, static], dim=-1) for chunk in features.chunk(members, dim=-1)]
    return torch.cat(member_inputs, dim=-1)


def check_channels(targets: Sequence[int], future: Sequence[int], input_size: int) -> None:
    """Refuse indices of channels that repeat or are out of range, no targets, and channels that are in both lists.

    Raises:
        ValueError: If indices of one list repeat or are out of range, or there is no target.
        ConfigError: If a channel is in both lists.
    """
    for name, indices, is_required in (("target_indices", targets, True), ("future_indices", future, False)):
        if (
            (is_required and not indices)
            or len(set(indices)) < len(indices)
            or not all(0 <= index < input_size for index in indices)
        ):
            raise ValueError(f"{name} must be different channels from 0 to {input_size - 1}, got {list(indices)}.")
    shared = sorted(set(targets) & set(future))
    if shared:
        raise ConfigError(f"A channel is forecast or known in the future, not both; got {shared}.")


def check_levels(levels: Sequence[float]) -> None:
    """Refuse levels of quantiles that do not increase or are out of range.

    Raises:
        ConfigError: If there are any.
    """
    if list(levels) != sorted(set(levels)) or not all(0 < level < 1 for level in levels):
        raise ConfigError(f"quantiles must increase and lie between 0 and 1, got {levels}.")


def check_choices(**values: str) -> None:
    """Refuse a value of ``head``, ``skip`` or ``anchor`` that does not exist.

    Raises:
        ConfigError: If there is one.
    """
    for option, value in values.items():
        allowed = _CHOICES[option]
        if value not in allowed:
            raise ConfigError(
                f"Unknown {option} '{value}'.{did_you_mean(value, allowed)} It is {' or '.join(allowed)}."
            )


def check_recursive(channels: Sequence[int], input_size: int, stride: int) -> None:
    """Refuse a recursive head where its forecasts do not give the next sample.

    Args:
        channels: Channels that are forecast or known in the future.
        input_size: Number of all channels.
        stride: Samples from one patch to the next.

    Raises:
        ConfigError: If a channel is missing, or a step reads several samples.
    """
    unknown = sorted(set(range(input_size)) - set(channels))
    if unknown:
        raise ConfigError(
            "A recursive head needs every channel to be a target or known in the future, so that its forecasts can "
            f"stand for values; channel {unknown[0]} is neither. Leave it out, or take head='direct'."
        )
    if stride > 1:
        raise ConfigError(
            f"A recursive head forecasts one sample at a time, got patch_stride={stride}; take patch_stride=1, or "
            "head='direct'."
        )
