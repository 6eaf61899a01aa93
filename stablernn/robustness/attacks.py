"""Attacks: small changes of a sequence that change its label.

Attacks work on any function from a change to logits, :class:`Perturbed` makes one of a classifier. Changes are in units
of the scaled data, standard deviations of each feature; only values that are there are changed.

Sources: Madry and others, "Towards deep learning models resistant to adversarial attacks" (ICLR 2018) for PGD; Carlini,
Wagner, "Towards evaluating the robustness of neural networks" (S&P 2017) for its loss; Moosavi-Dezfooli, Fawzi,
Frossard, "DeepFool" (CVPR 2016).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stablernn.cells import kept_weights
from stablernn.nn.layers import valid_steps
from stablernn.nn.models import Classifier
from stablernn.nn.preprocessing import Patches
from stablernn.robustness.settings import Norm

Logits = Callable[[Tensor], Tensor]
"""From changes ``(batch, ...)`` to logits ``(batch, classes)``, each row by itself; with gradients."""

OVERSHOOT = 0.02
"""By how much DeepFool goes beyond the boundary that it sees, as a share of the change."""
_INSIDE = 1 - 1e-6
"""What is used of a ball's radius: nothing must be rounded out of it."""
_NOTHING = 1e-30


@dataclass(frozen=True)
class Perturbed:
    """A classifier as a function of what is added to its inputs.

    Attributes:
        model: Prepared by :func:`prepared`.
        x: ``(batch, time, input_size)``, raw units, NaN where missing.
        lengths: ``(batch,)``.
        dt: ``(batch, time)``, or None.
    """

    model: Classifier
    x: Tensor
    lengths: Tensor
    dt: Tensor | None = None

    @property
    def free(self) -> Tensor:
        """Which values may change, as the shape of ``x``: those that are observed, and no padding."""
        valid = valid_steps(self.x, self.lengths)
        observed = ~torch.isnan(self.x)
        return observed if valid is None else observed & valid[..., None]

    def scaled(self) -> Tensor:
        """The values in the units of changes, NaN where missing."""
        scaling = self.model.scaling
        return (scaling.transform(self.x) - scaling.mean) / scaling.scale

    def rows(self, chosen: Tensor) -> Perturbed:
        """Some of the sequences: by number, or by a mask."""
        dt = None if self.dt is None else self.dt[chosen]
        return replace(self, x=self.x[chosen], lengths=self.lengths[chosen], dt=dt)

    def __call__(self, change: Tensor) -> Tensor:
        scaling = self.model.scaling
        moved = scaling.inverse(scaling.transform(self.x) + scaling.scale * change)
        logits: Tensor = self.model(moved, self.lengths, self.dt)
        return logits


@contextmanager
def prepared(model: Classifier) -> Iterator[Classifier]:
    """A copy of a model that gradients with respect to inputs flow through, its matrices built once."""
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    copied.patches = _Followed(copied.scaling, model.patches.size, model.patches.stride)
    with kept_weights(copied), torch.enable_grad():
        yield copied


class _Followed(Patches):
    """Patches that gradients flow through; training has no use for them."""

    def sequence(
        self, x: Tensor, valid: Tensor | None, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        with torch.set_grad_enabled(x.requires_grad):
            return super().sequence(x, valid, state)


@dataclass(frozen=True)
class Box:
    """Between which changes values stay within a range; 0 is always among them.

    Attributes:
        low: As the shape of a change, 0 or less.
        high: As the shape of a change, 0 or more.
    """

    low: Tensor
    high: Tensor

    @classmethod
    def around(cls, values: Tensor, low: Tensor, high: Tensor) -> Box:
        """The changes that leave scaled ``values`` within ``low`` to ``high`` or, where they are outside, there."""
        return cls((low - values).clamp_max(0), (high - values).clamp_min(0))

    def rows(self, chosen: Tensor) -> Box:
        """That of some of the sequences."""
        return Box(self.low[chosen], self.high[chosen])


def pgd(
    logits: Logits,
    truth: Tensor,
    free: Tensor,
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
    """Projected gradient ascent on the largest wrong logit less the true one, within a ball.

    The difference of logits in place of the cross entropy: no confidence can make its gradient vanish. Of all points
    visited the best is kept, so that further steps never help the defender; a start within the ball is one of them, so
    that neither does a larger ball that is started from a smaller one's result.

    Args:
        logits: What is attacked.
        truth: Classes, ``(batch,)`` int64.
        free: Which values may change, in the shape of a change.
        norm: ``linf`` or ``l2``, of all values of a sequence together.
        budget: Radius of the ball, 0 or more; of each sequence its own where it is a tensor ``(batch,)``.
        steps: Gradients taken, 0 or more.
        step: Length of each, as a share of the radius.
        start: Where to begin; no change when omitted.
        random_start: Whether to begin at a random point of the ball instead.
        generator: Of the random start.
        box: What changes must stay within beside the ball.

    Returns:
        The change; it is within the ball also after rounding.
    """
    given = torch.as_tensor(budget, dtype=torch.float64, device=free.device) * _INSIDE
    radius = _column(given.float().expand(len(free)), free)
    change = torch.zeros(free.shape, device=free.device) if start is None else start
    if random_start:
        change = _random(free, norm, radius, generator)
    change = _projected(change, norm, radius, free, box)
    best, highest = change, torch.full((len(free),), -torch.inf, device=free.device)
    for number in range(steps + 1):
        change = change.detach().requires_grad_(True)
        excess = _excess(logits(change), truth)
        better = excess.detach() > highest
        highest = torch.where(better, excess.detach(), highest)
        best = torch.where(_column(better, change), change.detach(), best)
        if number == steps or bool((highest > 0).all()):
            break
        (slope,) = torch.autograd.grad(excess.sum(), change)
        slope = torch.where(free, slope, 0.0)
        direction = torch.sign(slope) if norm == "linf" else slope / _norm(slope, "l2").clamp_min(_NOTHING)
        change = _projected(change.detach() + step * radius * direction, norm, radius, free, box)
    return best


def deepfool(
    logits: Logits,
    free: Tensor,
    *,
    norm: Norm,
    steps: int = 20,
    overshoot: float = OVERSHOOT,
    box: Box | None = None,
) -> tuple[Tensor, Tensor]:
    """The least change that reaches the nearest class boundary, all logits taken to be linear, until the label changes.

    Args:
        logits: What is attacked.
        free: Which values may change, in the shape of a change.
        norm: In which the change is to be small, ``linf`` or ``l2``.
        steps: Linearizations, 1 or more.
        overshoot: By how much the change is enlarged, as a share of it.
        box: What changes must stay within.

    Returns:
        The change, and for each sequence whether it changed the label.
    """
    total = torch.zeros(free.shape, device=free.device)
    with torch.no_grad():
        label = logits(total).argmax(dim=1)
    flipped = torch.zeros_like(label, dtype=torch.bool)
    for _ in range(steps):
        change = _inside((1 + overshoot) * total, box).requires_grad_(True)
        found = logits(change)
        flipped = found.argmax(dim=1) != label
        if bool(flipped.all()):
            break
        move = _to_nearest(found, change, label, free, norm)
        total = torch.where(_column(flipped, total), total, total + move)
    change = _inside((1 + overshoot) * total, box)
    with torch.no_grad():
        flipped = logits(change).argmax(dim=1) != label
    return change, flipped


def sizes(change: Tensor, norm: Norm) -> Tensor:
    """The norm of each sequence's change, ``(batch,)`` float64."""
    return _norm(change.double(), norm).flatten()


def _to_nearest(found: Tensor, change: Tensor, label: Tensor, free: Tensor, norm: Norm) -> Tensor:
    """The least change to the nearest boundary of the linearized logits."""
    slopes = torch.stack(
        [torch.autograd.grad(one.sum(), change, retain_graph=True)[0] for one in found.unbind(dim=1)], dim=1
    )
    slopes = torch.where(free[:, None], slopes, 0.0).flatten(2)
    row = torch.arange(len(label), device=label.device)
    apart = slopes - slopes[row, label][:, None]
    gap = (found[row, label][:, None] - found).detach()
    dual = apart.abs().sum(dim=2) if norm == "linf" else apart.norm(dim=2)
    distance = torch.where(dual > 0, gap / dual.clamp_min(_NOTHING), torch.inf)
    distance[row, label] = torch.inf
    nearest = distance.argmin(dim=1)
    length, away = distance[row, nearest], apart[row, nearest]
    direction = torch.sign(away) if norm == "linf" else away / dual[row, nearest].clamp_min(_NOTHING)[:, None]
    # A model that no input moves has no boundary.
    length = torch.where(torch.isfinite(length), length, 0.0)
    return (length[:, None] * direction).reshape(change.shape)


def _excess(logits: Tensor, truth: Tensor) -> Tensor:
    """The largest wrong logit less the true one, ``(batch,)``: above 0 the label is wrong."""
    true = logits.gather(1, truth[:, None])[:, 0]
    wrong = logits.scatter(1, truth[:, None], -torch.inf).amax(dim=1)
    return wrong - true


def _projected(change: Tensor, norm: Norm, radius: Tensor, free: Tensor, box: Box | None) -> Tensor:
    """The nearest change within the ball, then within the box, which only shortens it."""
    change = torch.where(free, change, 0.0)
    if norm == "linf":
        change = torch.minimum(torch.maximum(change, -radius), radius)
    else:
        length = _norm(change, "l2")
        change = torch.where(length > radius, change * (radius / length.clamp_min(_NOTHING)), change)
    return _inside(change, box)


def _inside(change: Tensor, box: Box | None) -> Tensor:
    # A box is NaN where values are missing, and a change is 0 there.
    return change.detach() if box is None else torch.fmin(torch.fmax(change, box.low), box.high).detach()


def _random(free: Tensor, norm: Norm, radius: Tensor, generator: torch.Generator | None) -> Tensor:
    """Evenly drawn from the cube; for ``l2`` a random direction and, evenly, a length."""
    shape = free.shape
    if norm == "linf":
        return radius * (2 * torch.rand(shape, generator=generator).to(free.device) - 1)
    drawn = torch.where(free, torch.randn(shape, generator=generator).to(free.device), 0.0)
    length = torch.rand(len(free), generator=generator).to(free.device)
    return radius * _column(length, drawn) * drawn / _norm(drawn, "l2").clamp_min(_NOTHING)


def _norm(change: Tensor, norm: Norm) -> Tensor:
    """Of each row, ``(batch, 1, ...)``."""
    flat = change.flatten(1).double()
    found = flat.abs().amax(dim=1) if norm == "linf" else flat.norm(dim=1)
    return _column(found.to(change.dtype), change)


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 1))
