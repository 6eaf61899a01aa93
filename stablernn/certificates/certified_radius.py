"""Certified radii: how far a sequence can move, in the 2-norm of all its values, before its label can change.

The bound covers the whole classifier: every observed value reaches the layers as often as resampling, patches and held
values repeat it, goes through convolutions, the embedding and the layers
(:class:`~stablernn.certificates.cascade.Cascade`), and is weighted by the readout and the head.
docs/background/stability.md derives each factor. Rates below 1 are not needed: over finitely many steps any finite
bound will do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix, norm_upper_bound, row_norms
from stablernn.bounds.linear_response import convolution_norm_upper_bound
from stablernn.bounds.step_bound import GELU_SLOPE
from stablernn.cells._base import float64
from stablernn.certificates.cascade import Cascade, cascade
from stablernn.certificates.certificate import embedding_stages
from stablernn.errors import CertificateError
from stablernn.nn.convolutions import KERNEL_SIZE, DilatedConvolutions
from stablernn.nn.layers import StableRNN
from stablernn.nn.models import Classifier, SequenceModel
from stablernn.nn.segments import valid_steps

_SAFE = 1 + 1e-9
"""Factor that covers the rounding of the few float64 operations between bounds that are safe themselves."""
READOUT_PARTS = {"all": ("last", "mean", "max")}
"""Parts of the readouts that have several, in the order of the head's features."""
_ROUNDED = 1 + 1e-4
"""Factor that covers float32 sums of the weights of a resampling, some thousand of them."""


def certified_radii(
    model: Classifier, x: Tensor, lengths: Tensor | None = None, *, layers: Sequence[Cascade] | None = None
) -> Matrix:
    """Return, for each sequence, a radius within which no change of its observed values changes the label.

    It holds in exact arithmetic on the stored float32 weights and the logits as they come out, in units of the scaled
    data: of a change of the raw values divided by the training data's standard deviations, of all values of a sequence
    together, the 2-norm. Which values are missing must not change.

    Args:
        model: In evaluation mode; it is not changed.
        x: ``(batch, time, input_size)``, raw units, NaN where missing.
        lengths: ``(batch,)``; all steps count when omitted.
        layers: Bounds of each member's layers for all inputs and regular steps, as a certificate has them; None to
            compute them.

    Returns:
        ``(batch,)``, float64, infinity for a sequence without an observed value.

    Raises:
        CertificateError: If nothing is proved of such a model; the message says why.
    """
    bounds = ClassBounds(model, layers)
    margins = _margins(model, x, lengths)
    predicted = margins.argmax(axis=1)
    step_counts, repeat_counts = _repetitions(model, x, lengths)
    radii = np.empty(len(margins))
    for row, (steps, repeats) in enumerate(zip(step_counts, repeat_counts, strict=True)):
        label = int(predicted[row])
        gaps = np.delete(margins[row, label] - margins[row], label)
        growth = np.delete(bounds.growth(max(steps, 1))[label], label) * math.sqrt(repeats) * _SAFE
        # No finite change closes the gap to a class that the input does not move.
        radii[row] = np.min(np.divide(gaps, growth, out=np.full_like(gaps, math.inf), where=growth > 0))
    return radii


class ClassBounds:
    """Bounds on how fast the difference between two classes changes with the layers' input, for any sequence length.

    Args:
        model: A classifier.
        layers: As of :func:`certified_radii`.

    Raises:
        CertificateError: If nothing is proved of the model.
    """

    def __init__(self, model: Classifier, layers: Sequence[Cascade] | None = None) -> None:
        _check(model)
        self._readout = model.readout
        stacks = [stack for stack in model.rnn.stacks if isinstance(stack, StableRNN)]
        self._cascades = [cascade(stack.cells) for stack in stacks] if layers is None else list(layers)
        self._embedding_gains = embedding_gains(model)
        self._head_norms = [pair_norms(weight, model.readout) for weight in head_weights(model.head.maps)]
        self._cached_growth: dict[int, Matrix] = {}
        if not math.isfinite(float(self.growth(1).max())):
            raise CertificateError(
                f"No radius is proved with the cell '{stacks[0].cell}': for these weights there is no bound on how far "
                "its input moves its state. `stablernn certify` shows what is proved."
            )

    def growth(self, steps: int) -> Matrix:
        """Return at least the change of ``logit_i - logit_j``, or of log-probabilities if there are several members.

        For an input of the layers, all of its values together, that moves by 1 in the 2-norm.

        Args:
            steps: Of the layers, 1 or more.

        Returns:
            ``(classes, classes)``, zeros on the diagonal for a single member.
        """
        if steps not in self._cached_growth:
            members = zip(self._cascades, self._head_norms, self._embedding_gains, strict=True)
            growths = [
                embedding_gain * _member_growth(layers, head_norms, self._readout, steps)
                for layers, head_norms, embedding_gain in members
            ]
            self._cached_growth[steps] = averaged_growth(growths)
        return self._cached_growth[steps]


def head_weights(maps: Tensor | nn.Module) -> list[Matrix]:
    """Return the weights of the linear maps in a list of modules."""
    assert isinstance(maps, nn.Module)
    return [float64(linear.weight) for linear in maps.children() if isinstance(linear, nn.Linear)]


def _member_growth(layers: Cascade, head_norms: Sequence[Matrix], readout: str, steps: int) -> Matrix:
    """Return the growth of one member after its embedding."""
    last_gain, all_gain = layers.gains(steps)
    # A mean of T vectors is at most 1 / sqrt(T) of their joint norm; a largest value moves by at most that norm.
    gains = {"last": last_gain, "mean": all_gain / math.sqrt(steps), "max": all_gain}
    return readout_growth(head_norms, gains, readout)


def readout_growth(head_norms: Sequence[Matrix], gains: Mapping[str, float], readout: str) -> Matrix:
    """Return the growth of the outputs of a head.

    Args:
        head_norms: For each part of the readout the norms of the head's weights of that part, of any shape.
        gains: Of the parts ``last``, ``mean`` and ``max`` of the readout.
        readout: Of the model.

    Returns:
        In the shape of the norms.
    """
    parts = READOUT_PARTS.get(readout, (readout,))
    total = np.zeros_like(head_norms[0])
    for part, norms in zip(parts, head_norms, strict=True):
        # Infinity times 0 is NaN, which is not taken.
        with np.errstate(invalid="ignore"):
            total += np.where(norms == 0, 0.0, norms * gains[part])
    return total


def averaged_growth(members: Sequence[Matrix]) -> Matrix:
    """Return the growth of the logarithms of averaged probabilities.

    ``log p_i = -log sum_m exp(l_m - l_i)`` of one member changes by a weighted mean of the changes of ``l_m - l_i``;
    the logarithm of a mean of probabilities by at most the largest change among the members. A single member has its
    own.
    """
    if len(members) == 1:
        return members[0]
    class_growth = np.max([growth.max(axis=1) for growth in members], axis=0)
    total: Matrix = class_growth[:, None] + class_growth[None]
    return total


def pair_norms(weight: Matrix, readout: str) -> list[Matrix]:
    """Return the norms of differences of classes' weights, ``(classes, classes)`` for each part of the readout."""
    parts = np.split(weight, len(READOUT_PARTS.get(readout, (readout,))), axis=-1)
    # Class by class: the differences of a thousand classes at once would fill the memory.
    return [np.stack([row_norms(part - row) for row in part]) for part in parts]


def _margins(model: Classifier, x: Tensor, lengths: Tensor | None) -> Matrix:
    """Return scores whose differences are those of the logits before calibration, of an ensemble of log-probabilities.

    Returns:
        ``(batch, classes)``.
    """
    with torch.no_grad():
        logits = model.member_logits(model.final_state(x, lengths)).cpu().double()
    if logits.shape[1] == 1:
        return float64(logits[:, 0])
    log_probabilities = torch.log_softmax(logits, dim=-1)
    # Of the sum over members: dividing by their number changes no difference.
    return float64(torch.logsumexp(log_probabilities, dim=1))


def _repetitions(model: Classifier, x: Tensor, lengths: Tensor | None) -> tuple[list[int], list[float]]:
    """Return, for each sequence, the steps of the layers and how often at most a single value reaches them.

    Patches select scaled values, so that the norm of the map is the root of the number of times one is selected. What
    they select of a resampled sequence are means of two values, with weights of 0 or more whose sum is 1: the squared
    norm of a map is at most the largest sum of a row, here 1, times the largest of a column, the sum of the weights
    with which a value is selected (Golub, Van Loan, Matrix Computations, corollary 2.3.2).
    """
    patches = model.patches
    raw = x.detach().clone().requires_grad_(True)
    state = tuple(raw.new_zeros(len(raw), size) for _, size in patches.state_roles())
    with torch.enable_grad():
        samples, valid = model.resample(raw, lengths)
        features, steps, _ = patches.sequence(samples, valid, state)
        valid_patches = valid_steps(features, steps)
        selected = features if valid_patches is None else features[valid_patches]
        # The gradient of the sum counts how often each value was selected, divided by its scale.
        (slopes,) = torch.autograd.grad(selected.sum(), raw)
    counts = (slopes * model.feature_scaling()[1]).flatten(1).amax(dim=1)
    # Weights of a resampling are no whole numbers, and float32 has rounded their sums.
    counts = torch.round(counts) if model.resampling is None else counts * _ROUNDED
    count = torch.full((len(x),), features.shape[1]) if steps is None else steps
    return count.tolist(), counts.tolist()


def _check(model: Classifier) -> None:
    """Refuse models for which no radius is derived.

    Raises:
        CertificateError: If the scaling, the time or the cell is such.
    """
    if model.scaling.kind not in ("standard", "none"):
        raise CertificateError(
            f"No radius is proved with the scaling '{model.scaling.kind}', by which one error of a value can be of "
            "any size; train with model.scaling=standard."
        )
    if model.max_dt is not None:
        raise CertificateError(
            "No radius is proved of a model for irregular time: bounds are of regular steps. Train with "
            "model.time=ignore."
        )
    if len(model.head_layers):
        raise CertificateError(
            "No radius is proved of a model with layers in front of its head, got "
            f"{len(model.head_layers)}. Train it with a linear head."
        )
    if model.scaling.keep_missing:
        raise CertificateError(
            f"No radius is proved of the cell '{model.rnn.first.cell}', which fills in missing values by itself."
        )


def embedding_gains(model: SequenceModel) -> list[float]:
    """Return by how much the embedding of each member can enlarge a change of the scaled values, 1 without one.

    Convolutions in front of the embedding count as a part of it.
    """
    rnn = model.rnn
    # An embedding is a linear map followed by a GELU.
    convolutions, embeddings = embedding_stages(rnn)
    if convolutions:
        return [_joint_gain(*stages) for stages in zip(convolutions, embeddings, strict=True)]
    gains = [norm_upper_bound(float64(embedding.weight)) * GELU_SLOPE for embedding in embeddings]
    return gains or [1.0] * len(rnn)


def convolution_gain(convolutions: DilatedConvolutions) -> float:
    """Return at least the Lipschitz constant of the convolutions, GELUs included, as a map of the samples of a patch.

    It is the product over the layers of the norm of the convolution and the largest slope of GELU.
    """
    shape, gain = convolutions.shape, 1.0
    for layer, linear in enumerate(convolutions.linear_maps()):
        # (width, KERNEL_SIZE * channels) to (KERNEL_SIZE, width, channels)
        taps = float64(linear.weight).reshape(shape.width, KERNEL_SIZE, -1).transpose(1, 0, 2)
        gain *= convolution_norm_upper_bound(taps, shape.lengths[layer], 2**layer) * GELU_SLOPE
    return gain * _SAFE


def _joint_gain(convolutions: DilatedConvolutions, embedding: nn.Linear) -> float:
    """Return at least the Lipschitz constant of convolutions and the embedding behind them."""
    weight, extras = float64(embedding.weight), convolutions.shape.extras
    # The extras pass the convolutions unchanged: with |(c / gain, e)| <= 1, the norm is that of the scaled columns.
    scales = np.full(weight.shape[1], convolution_gain(convolutions))
    scales[weight.shape[1] - extras :] = 1.0
    return norm_upper_bound(weight * scales) * GELU_SLOPE * _SAFE
