"""Adversarial attacks, small changes of a sequence that change its predicted label, and random noise.

Attacks work on any function from a change to logits; :class:`PerturbedClassifier` wraps a classifier as one. Changes
are in units of the scaled data, that is, standard deviations of each feature; missing values and padding stay
unchanged. Noise is added to the raw values, in units of the standard deviation of each feature in training.

Sources: Madry and others, "Towards deep learning models resistant to adversarial attacks" (ICLR 2018) for PGD; Carlini,
Wagner, "Towards evaluating the robustness of neural networks" (S&P 2017) for its loss; Moosavi-Dezfooli, Fawzi,
Frossard, "DeepFool" (CVPR 2016).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.cells import cached_weights
from stablernn.nn.models import Classifier, SequenceModel
from stablernn.nn.preprocessing import Patches
from stablernn.nn.segments import valid_steps
from stablernn.robustness.settings import DRAWS, Norm

Model = TypeVar("Model", bound=SequenceModel)
Logits = Callable[[Tensor], Tensor]
"""A differentiable function from changes ``(batch, ...)`` to logits ``(batch, classes)``; rows are independent."""

OVERSHOOT = 0.02
"""Distance that DeepFool goes beyond the linearized boundary, as a share of the change."""
_RADIUS_MARGIN = 1 - 1e-6
"""Share of a ball's radius that is used, so that rounding cannot move a change out of the ball."""
_TINY = 1e-30
"""Lower bound of divisors."""
Array = npt.NDArray[Any]
Predict = Callable[[Array], Array]
"""From values (samples, time, features) to class numbers (samples,)."""


@dataclass(frozen=True)
class PerturbedClassifier:
    """A classifier as a function of a change that is added to its inputs.

    Attributes:
        model: Copy of the classifier from :func:`differentiable_copy`.
        x: Inputs ``(batch, time, input_size)`` in raw units, NaN where missing.
        lengths: Sequence lengths ``(batch,)``.
        dt: Time steps ``(batch, time)``, or None.
    """

    model: Classifier
    x: Tensor
    lengths: Tensor
    dt: Tensor | None = None

    @property
    def mask(self) -> Tensor:
        """Mask of the values that may change, in the shape of ``x``: observed values that are not padding."""
        valid = valid_steps(self.x, self.lengths)
        observed = ~torch.isnan(self.x)
        return observed if valid is None else observed & valid[..., None]

    def scaled(self) -> Tensor:
        """Return the inputs in the units of changes, NaN where missing."""
        mean, scale = self.model.feature_scaling()
        return (self.model.scaling.transform(self.x) - mean) / scale

    def select(self, rows: Tensor) -> PerturbedClassifier:
        """Return the function for some of the sequences, selected by index or by mask."""
        dt = None if self.dt is None else self.dt[rows]
        return replace(self, x=self.x[rows], lengths=self.lengths[rows], dt=dt)

    def __call__(self, change: Tensor) -> Tensor:
        scaling, (_, scale) = self.model.scaling, self.model.feature_scaling()
        # Added in the scaled space, then mapped back, because the model scales its inputs itself.
        perturbed_x = scaling.inverse(scaling.transform(self.x) + scale * change)
        logits: Tensor = self.model(perturbed_x, self.lengths, self.dt)
        return logits


@contextmanager
def differentiable_copy(model: Model) -> Iterator[Model]:
    """Yield a copy of a model that is differentiable with respect to its inputs; its matrices are computed once."""
    # Parameters need no gradients here: only the inputs are attacked.
    attacked_model = copy.deepcopy(model).eval().requires_grad_(False)
    patches = model.patches
    attacked_model.patches = _DifferentiablePatches(
        attacked_model.scaling, patches.size, patches.stride, end_aligned=patches.end_aligned
    )
    with cached_weights(attacked_model), torch.enable_grad():
        yield attacked_model


class _DifferentiablePatches(Patches):
    """Patches with gradients, which training does not need."""

    def sequence(
        self, x: Tensor, valid: Tensor | None, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        with torch.set_grad_enabled(x.requires_grad):
            return super().sequence(x, valid, state)


@dataclass(frozen=True)
class Box:
    """Bounds of changes that keep values within a range; a change of 0 is always within the bounds.

    Attributes:
        low: Lower bounds in the shape of a change, 0 or less.
        high: Upper bounds in the shape of a change, 0 or more.
    """

    low: Tensor
    high: Tensor

    @classmethod
    def around(cls, values: Tensor, low: Tensor, high: Tensor) -> Box:
        """Return the bounds that keep scaled ``values`` between ``low`` and ``high``.

        A value outside that range may only move towards it.
        """
        return cls((low - values).clamp_max(0), (high - values).clamp_min(0))

    def select(self, rows: Tensor) -> Box:
        """Return the bounds of some of the sequences."""
        return Box(self.low[rows], self.high[rows])


def pgd(
    logits: Logits,
    truth: Tensor,
    mask: Tensor,
    *,
    norm: Norm,
    budget: float | Tensor,
    steps: int = 20,
    step: float = 0.25,
    start: Tensor | None = None,
    random_start: bool = False,
    generator: torch.Generator | None = None,
    box: Box | None = None,
) -> Tensor:
    """Run projected gradient ascent on the margin of the largest wrong logit over the true one, within a ball.

    The margin replaces the cross entropy because its gradient does not vanish however confident the model is. The best
    of all visited points is returned, so that more steps never help the defender. A start within the ball is one of
    these points, so neither does a larger ball that starts from the result of a smaller one.

    Args:
        logits: The attacked function.
        truth: True classes, ``(batch,)`` int64.
        mask: Mask of the values that may change, in the shape of a change.
        norm: ``linf`` or ``l2``, over all values of a sequence.
        budget: Radius of the ball, 0 or more; a tensor ``(batch,)`` has a radius for each sequence.
        steps: Number of gradient steps, 0 or more.
        step: Step length, as a share of the radius.
        start: Initial change; zero when omitted.
        random_start: Whether to start at a random point of the ball instead.
        generator: Random generator of the random start.
        box: Bounds of the change in addition to the ball.

    Returns:
        The change, which is within the ball even after rounding.
    """
    reduced_budget = torch.as_tensor(budget, dtype=torch.float64, device=mask.device) * _RADIUS_MARGIN
    # (batch, 1, ...), to broadcast over a change.
    radius = _column(reduced_budget.float().expand(len(mask)), mask)
    change = torch.zeros(mask.shape, device=mask.device) if start is None else start
    if random_start:
        change = _random_change(mask, norm, radius, generator)
    change = _project(change, norm, radius, mask, box)
    best_change, best_margin = change, torch.full((len(mask),), -torch.inf, device=mask.device)
    for step_index in range(steps + 1):
        change = change.detach().requires_grad_(True)
        margin = _wrong_margin(logits(change), truth)
        improved = margin.detach() > best_margin
        best_margin = torch.where(improved, margin.detach(), best_margin)
        best_change = torch.where(_column(improved, change), change.detach(), best_change)
        # Once every label is wrong, more steps cannot change the accuracy.
        if step_index == steps or bool((best_margin > 0).all()):
            break
        # Rows are independent, so the gradient of the sum is that of each margin.
        (gradient,) = torch.autograd.grad(margin.sum(), change)
        gradient = torch.where(mask, gradient, 0.0)
        direction = torch.sign(gradient) if norm == "linf" else gradient / _norm(gradient, "l2").clamp_min(_TINY)
        change = _project(change.detach() + step * radius * direction, norm, radius, mask, box)
    return best_change


def deepfool(
    logits: Logits,
    mask: Tensor,
    *,
    norm: Norm,
    steps: int = 20,
    overshoot: float = OVERSHOOT,
    box: Box | None = None,
) -> tuple[Tensor, Tensor]:
    """Move to the nearest class boundary of the linearized logits until the label changes.

    Args:
        logits: The attacked function.
        mask: Mask of the values that may change, in the shape of a change.
        norm: Norm in which the change is to be small, ``linf`` or ``l2``.
        steps: Maximum number of linearizations, 1 or more.
        overshoot: Enlargement of the change, as a share of it.
        box: Bounds of the change.

    Returns:
        The change, and a mask of the sequences ``(batch,)`` whose label it changed.
    """
    total = torch.zeros(mask.shape, device=mask.device)
    with torch.no_grad():
        label = logits(total).argmax(dim=1)
    flipped = torch.zeros_like(label, dtype=torch.bool)
    for _ in range(steps):
        change = _clip((1 + overshoot) * total, box).requires_grad_(True)
        output = logits(change)
        flipped = output.argmax(dim=1) != label
        if bool(flipped.all()):
            break
        move = _move_to_boundary(output, change, label, mask, norm)
        # Sequences whose label has changed stop here.
        total = torch.where(_column(flipped, total), total, total + move)
    change = _clip((1 + overshoot) * total, box)
    with torch.no_grad():
        flipped = logits(change).argmax(dim=1) != label
    return change, flipped


def change_norms(change: Tensor, norm: Norm) -> Tensor:
    """Return the norm of the change of each sequence, ``(batch,)`` float64."""
    return _norm(change.double(), norm).flatten()


def _move_to_boundary(output: Tensor, change: Tensor, label: Tensor, mask: Tensor, norm: Norm) -> Tensor:
    """Return the smallest change that reaches the nearest class boundary of the linearized logits."""
    gradients = torch.stack(
        [torch.autograd.grad(logit.sum(), change, retain_graph=True)[0] for logit in output.unbind(dim=1)], dim=1
    )
    # (batch, classes, values)
    gradients = torch.where(mask[:, None], gradients, 0.0).flatten(2)
    rows = torch.arange(len(label), device=label.device)
    normals = gradients - gradients[rows, label][:, None]
    gap = (output[rows, label][:, None] - output).detach()
    # The distance to a hyperplane in a norm is the gap over the dual norm of its normal: l1 for linf, l2 for l2.
    dual_norm = normals.abs().sum(dim=2) if norm == "linf" else normals.norm(dim=2)
    distance = torch.where(dual_norm > 0, gap / dual_norm.clamp_min(_TINY), torch.inf)
    distance[rows, label] = torch.inf
    nearest = distance.argmin(dim=1)
    length, normal = distance[rows, nearest], normals[rows, nearest]
    direction = torch.sign(normal) if norm == "linf" else normal / dual_norm[rows, nearest].clamp_min(_TINY)[:, None]
    # A model that does not depend on its input has no boundary.
    length = torch.where(torch.isfinite(length), length, 0.0)
    return (length[:, None] * direction).reshape(change.shape)


def _wrong_margin(logits: Tensor, truth: Tensor) -> Tensor:
    """Return the largest wrong logit minus the true one, ``(batch,)``; positive if the label is wrong."""
    true = logits.gather(1, truth[:, None])[:, 0]
    wrong = logits.scatter(1, truth[:, None], -torch.inf).amax(dim=1)
    return wrong - true


def _project(change: Tensor, norm: Norm, radius: Tensor, mask: Tensor, box: Box | None) -> Tensor:
    """Project a change onto the ball, then onto the box, which cannot make it longer because the box contains 0."""
    change = torch.where(mask, change, 0.0)
    if norm == "linf":
        change = torch.minimum(torch.maximum(change, -radius), radius)
    else:
        length = _norm(change, "l2")
        change = torch.where(length > radius, change * (radius / length.clamp_min(_TINY)), change)
    return _clip(change, box)


def _clip(change: Tensor, box: Box | None) -> Tensor:
    # A box is NaN where values are missing; fmin and fmax return the change there, which is 0.
    return change.detach() if box is None else torch.fmin(torch.fmax(change, box.low), box.high).detach()


def _random_change(mask: Tensor, norm: Norm, radius: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw uniformly from the cube; for ``l2``, draw a random direction and a uniform length."""
    shape = mask.shape
    if norm == "linf":
        return radius * (2 * torch.rand(shape, generator=generator).to(mask.device) - 1)
    direction = torch.where(mask, torch.randn(shape, generator=generator).to(mask.device), 0.0)
    length = torch.rand(len(mask), generator=generator).to(mask.device)
    return radius * _column(length, direction) * direction / _norm(direction, "l2").clamp_min(_TINY)


def _norm(change: Tensor, norm: Norm) -> Tensor:
    """Return the norm of each row, ``(batch, 1, ...)``."""
    flat = change.flatten(1).double()
    norms = flat.abs().amax(dim=1) if norm == "linf" else flat.norm(dim=1)
    return _column(norms.to(change.dtype), change)


def _column(values: Tensor, like: Tensor) -> Tensor:
    # (batch,) to (batch, 1, ...) with as many axes as ``like``.
    return values.reshape(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True)
class NoiseInput:
    """The sequences to which noise is added.

    Attributes:
        x: Values, float32 (samples, time, features), in raw units, NaN where missing.
        lengths: Sequence lengths, int64 (samples,).
        scale: Unit of the noise, (features,).
        low: Smallest value in training, (features,).
        high: Largest value in training, (features,).
    """

    x: Array
    lengths: Array
    scale: Array
    low: Array
    high: Array

    @property
    def valid(self) -> Array:
        """Mask of steps that are not padding, (samples, time, 1)."""
        valid_steps: Array = np.arange(self.x.shape[1])[None, :, None] < self.lengths[:, None, None]
        return valid_steps


def white(values: NoiseInput, level: float, random: np.random.Generator) -> Array:
    """Add normal noise of standard deviation ``level`` to every value."""
    noise = random.standard_normal(values.x.shape, dtype=np.float32)
    noisy: Array = values.x + np.float32(level) * values.scale.astype(np.float32) * noise
    return noisy


def salt_and_pepper(values: NoiseInput, level: float, random: np.random.Generator) -> Array:
    """Set each value with probability ``level`` to the smallest or the largest of its feature in training."""
    is_replaced = (random.random(values.x.shape) < level) & ~np.isnan(values.x)
    is_salt = random.random(values.x.shape) < 0.5
    return np.where(is_replaced, np.where(is_salt, values.high, values.low), values.x).astype(np.float32)


def missing(values: NoiseInput, level: float, random: np.random.Generator) -> Array:
    """Make all features of each step missing with probability ``level``."""
    is_dropped = random.random(values.x.shape[:2]) < level
    return np.where(is_dropped[..., None], np.float32(np.nan), values.x)


def jitter(values: NoiseInput, level: float, random: np.random.Generator) -> Array:
    """Shift the time of each step by a normal offset of standard deviation ``level`` steps.

    Values are interpolated linearly between samples, and constant before the first and after the last one. Next to a
    missing value the nearer sample is used, so that gaps move but do not grow.
    """
    last = (values.lengths - 1)[:, None]
    # Shifted times in steps, (samples, time).
    times = np.arange(values.x.shape[1]) + level * random.standard_normal(values.x.shape[:2])
    times = np.clip(times, 0, last)
    before = np.floor(times).astype(np.int64)
    after = np.minimum(before + 1, last)
    fraction = (times - before)[..., None].astype(np.float32)
    interpolated = _take_steps(values.x, before) * (1 - fraction) + _take_steps(values.x, after) * fraction
    nearest = _take_steps(values.x, np.where(fraction[..., 0] > 0.5, after, before))
    return np.where(np.isnan(interpolated), nearest, interpolated)


Noise = Callable[[NoiseInput, float, np.random.Generator], Array]
KINDS: dict[str, tuple[Noise, tuple[float, ...]]] = {
    "white": (white, (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)),
    "salt_and_pepper": (salt_and_pepper, (0.02, 0.05, 0.1, 0.2, 0.3)),
    "missing": (missing, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "jitter": (jitter, (0.1, 0.2, 0.5, 1.0, 2.0)),
}
"""Function and levels of each kind of noise; level 0 is always measured too."""


def noise_curve(
    predict: Predict, values: NoiseInput, truth: Array, kind: str, *, draws: int = DRAWS, seed: int = 0
) -> dict[str, list[float]]:
    """Measure the accuracy at each level of one kind of noise.

    Args:
        predict: The classifier.
        values: The sequences.
        truth: True classes, (samples,).
        kind: One of :data:`KINDS`.
        draws: Draws of noise at each level, 2 or more.
        seed: Seed of the noise.

    Returns:
        ``levels``, ``accuracy`` (mean over the draws) and ``standard_error`` of this mean. The first level is 0, which
        needs no draws.
    """
    add_noise, levels = KINDS[kind]
    rows = [(0.0, float((predict(values.x) == truth).mean()), 0.0)]
    for level_index, level in enumerate(levels):
        scores = []
        for draw in range(draws):
            # Independent streams, so that the result of one kind or level does not depend on the others.
            random = np.random.default_rng([seed, list(KINDS).index(kind), level_index, draw])
            noisy = np.where(values.valid, add_noise(values, level, random), values.x)
            scores.append(float((predict(noisy) == truth).mean()))
        rows.append((level, float(np.mean(scores)), float(np.std(scores, ddof=1)) / math.sqrt(draws)))
    names = ("levels", "accuracy", "standard_error")
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _take_steps(x: Array, steps: Array) -> Array:
    # Steps (samples, time) are the same for all features.
    return np.take_along_axis(x, np.broadcast_to(steps[..., None], x.shape), axis=1)
