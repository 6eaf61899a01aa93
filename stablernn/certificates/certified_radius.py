"""Certified radii: how far a sequence can be moved, in the 2-norm of all its values, before its label can change.

The bound goes through the whole classifier: every observed value reaches the layers as often as patches and held values
repeat it, an embedding bends it, the layers carry it on (:class:`~stablernn.certificates.cascade.Cascade`), the
readout and the head weigh it. docs/robustness.md derives each factor. Rates below 1 are not needed: over finitely many
steps any finite bound will do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix, norm_above, row_norms
from stablernn.bounds.step_bound import GELU_SLOPE, float64
from stablernn.certificates.cascade import Cascade, cascade
from stablernn.errors import CertificateError
from stablernn.nn.layers import StableRNN, valid_steps
from stablernn.nn.models import Classifier

_SAFE = 1 + 1e-9
"""What covers the rounding of the few float64 operations between bounds that are safe themselves."""


def certified_radii(model: Classifier, x: Tensor, lengths: Tensor | None = None) -> Matrix:
    """For each sequence a radius within which no change of its observed values changes the label.

    It holds in exact arithmetic on the stored float32 weights and the logits as they come out, in units of the scaled
    data: of a change of the raw values divided by the training data's standard deviations, of all values of a sequence
    together, the 2-norm. Which values are missing must not change.

    Args:
        model: In evaluation mode; it is not changed.
        x: ``(batch, time, input_size)``, raw units, NaN where missing.
        lengths: ``(batch,)``; all steps count when omitted.

    Returns:
        ``(batch,)``, float64, infinity where nothing was observed.

    Raises:
        CertificateError: If nothing is proved of such a model; the sentence says why.
    """
    bounds = ClassBounds(model)
    margins = _margins(model, x, lengths)
    predicted = margins.argmax(axis=1)
    patches, repeats = _spread(model, x, lengths)
    radii = np.empty(len(margins))
    for row, (steps, times) in enumerate(zip(patches, repeats, strict=True)):
        label = int(predicted[row])
        away = np.delete(margins[row, label] - margins[row], label)
        growth = np.delete(bounds.growth(max(steps, 1))[label], label) * math.sqrt(times) * _SAFE
        radii[row] = np.min(np.divide(away, growth, out=np.full_like(away, math.inf), where=growth > 0))
    return radii


class ClassBounds:
    """How fast the difference between two classes can change with the layers' input, for a sequence of any length.

    Args:
        model: A classifier.

    Raises:
        CertificateError: If nothing is proved of it.
    """

    def __init__(self, model: Classifier) -> None:
        _check(model)
        self._readout = model.readout
        stacks = [stack for stack in model.rnn.stacks if isinstance(stack, StableRNN)]
        self._layers = [cascade(stack.cells) for stack in stacks]
        bent = [norm_above(weight) * GELU_SLOPE for weight in _weights(model.rnn.embeddings)]
        self._embeddings = bent or [1.0] * len(stacks)
        self._heads = [_pair_norms(weight, model.readout) for weight in _weights(model.head.maps)]
        self._known: dict[int, Matrix] = {}
        if not math.isfinite(float(self.growth(1).max())):
            raise CertificateError(
                f"No radius is proved with the cell '{stacks[0].cell}': for these weights there is no bound on how far "
                "its input moves its state. `stablernn certify` shows what is proved."
            )

    def growth(self, steps: int) -> Matrix:
        """At least the change of ``logit_i - logit_j``, or of their probabilities' logarithms where there are members.

        For an input of the layers, all of its values together, that moves by 1 in the 2-norm.

        Args:
            steps: Of the layers, 1 or more.

        Returns:
            ``(classes, classes)``, zeros on the diagonal for a single member.
        """
        if steps not in self._known:
            each = [
                embedding * _through(layers, heads, self._readout, steps)
                for layers, heads, embedding in zip(self._layers, self._heads, self._embeddings, strict=True)
            ]
            self._known[steps] = each[0] if len(each) == 1 else _averaged(each)
        return self._known[steps]


def _weights(maps: Tensor | nn.Module) -> list[Matrix]:
    """Those of the linear maps in a list of modules."""
    assert isinstance(maps, nn.Module)
    return [float64(one.weight) for one in maps.children() if isinstance(one, nn.Linear)]


def _through(layers: Cascade, heads: Sequence[Matrix], readout: str, steps: int) -> Matrix:
    """The growth of one member behind its embedding."""
    last, every = layers.gains(steps)
    # A mean of T vectors is at most 1 / sqrt(T) of their joint norm; a largest value moves by at most that norm.
    gains = {"last": last, "mean": every / math.sqrt(steps), "max": every}
    parts = ("last", "mean", "max") if readout == "all" else (readout,)
    total = np.zeros_like(heads[0])
    for part, norms in zip(parts, heads, strict=True):
        with np.errstate(invalid="ignore"):
            total += np.where(norms == 0, 0.0, norms * gains[part])
    return total


def _averaged(members: Sequence[Matrix]) -> Matrix:
    """The growth of the logarithms of averaged probabilities.

    ``log p_i = -log sum_m exp(l_m - l_i)`` of one member changes by a weighted mean of the changes of ``l_m - l_i``;
    the logarithm of a mean of probabilities by at most the largest change among the members.
    """
    one = np.max([growth.max(axis=1) for growth in members], axis=0)
    total: Matrix = one[:, None] + one[None]
    return total


def _pair_norms(weight: Matrix, readout: str) -> list[Matrix]:
    """For each part of what a head reads the norms of the differences of two classes' weights, (classes, classes)."""
    apart = weight[:, None] - weight[None]
    classes = len(weight)
    parts = np.split(apart, 3 if readout == "all" else 1, axis=-1)
    return [row_norms(part.reshape(classes * classes, -1)).reshape(classes, classes) for part in parts]


def _margins(model: Classifier, x: Tensor, lengths: Tensor | None) -> Matrix:
    """What classes are compared by before calibration, (batch, classes): logits, or logarithms of probabilities."""
    with torch.no_grad():
        logits = model.member_logits(model.final_state(x, lengths)).cpu().double()
    if logits.shape[1] == 1:
        return float64(logits[:, 0])
    shares = torch.log_softmax(logits, dim=-1)
    return float64(torch.logsumexp(shares, dim=1) - math.log(logits.shape[1]))


def _spread(model: Classifier, x: Tensor, lengths: Tensor | None) -> tuple[list[int], list[int]]:
    """Steps of the layers, and how often at most one value reaches them, of each sequence.

    What patches make of scaled values is a selection of them, so that its norm is the root of how often one is chosen.
    """
    patches = model.patches
    raw = x.detach().clone().requires_grad_(True)
    valid = valid_steps(raw, lengths)
    state = tuple(raw.new_zeros(len(raw), size) for _, size in patches.state_roles())
    with torch.enable_grad():
        features, steps, _ = patches.sequence(raw, valid, state)
        kept = valid_steps(features, steps)
        chosen = features if kept is None else features[kept]
        (slopes,) = torch.autograd.grad(chosen.sum(), raw)
    counts = torch.round(slopes * model.scaling.scale).flatten(1).amax(dim=1)
    count = torch.full((len(x),), features.shape[1]) if steps is None else steps
    return count.tolist(), counts.int().tolist()


def _check(model: Classifier) -> None:
    """Refuse what no radius is derived for.

    Raises:
        CertificateError: If there is something of the kind.
    """
    if model.scaling.kind != "standard":
        raise CertificateError(
            f"No radius is proved with the scaling '{model.scaling.kind}', which divides by what it has just seen; "
            "train with model.scaling=standard."
        )
    if model.max_dt is not None:
        raise CertificateError(
            "No radius is proved of a model for irregular time: bounds are of regular steps. Train with "
            "model.time=ignore."
        )
    if model.scaling.keep_missing:
        raise CertificateError(
            f"No radius is proved of the cell '{model.rnn.first.cell}', which fills in missing values by itself."
        )
