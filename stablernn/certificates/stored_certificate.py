"""The certificate as runs and versions have it: for all inputs, and for those within the range seen in training.

With it come bounds on how far a wrong raw value moves the outputs of a model, and on when it is forgotten. They are
composed like certified radii (:mod:`stablernn.certificates.certified_radius`): a value reaches the layers as often as
patches and held values repeat it, goes through convolutions, the embedding and the layers, and is weighted by the
readout and the head. docs/background/stability.md derives each factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from stablernn.bounds.linalg import Matrix, norm_upper_bound, row_norms
from stablernn.bounds.step_bound import GELU_SLOPE
from stablernn.cells import StableCell
from stablernn.cells._base import float64
from stablernn.certificates.cascade import Cascade, longest, shortest
from stablernn.certificates.certificate import Certificate, prove
from stablernn.certificates.certified_radius import (
    READOUT_PARTS,
    averaged_growth,
    embedding_gains,
    head_weights,
    pair_norms,
    readout_growth,
)
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.plain_words import describe_guarantee, states_anything
from stablernn.nn.models import Classifier, Forecaster, SequenceModel, SequencePredictor
from stablernn.nn.preprocessing import ContextScaling

SHARE = 0.01
"""Share of an error, or change of a probability, up to which the error counts as forgotten."""
GAPS = (0, 10, None)
"""Numbers of missing values behind a wrong one, which repeat it, of which the effect is stated; None for any number."""
_COUNTED_STEPS = 100_000
"""Steps for which :class:`Cascade` bounds an error that need not fade."""
_SAFE = 1 + 1e-9
"""Factor that covers the rounding of the few float64 operations between bounds that are safe themselves."""

_Gains = dict[str, float]
"""How far the parts ``last``, ``mean`` and ``max`` of a member's readout move."""
_BOUNDED_KEYS = (
    "inputs",
    "kind",
    "holds",
    "norm",
    "contraction_rate",
    "step_rate",
    "states",
    "time",
    "gains",
    "forgetting",
)
"""Keys of the certificate for bounded inputs that are stored besides its balls."""

ALL_STAGE = "Proving what holds for inputs of any size"
WITHIN_STAGE = "Proving what holds for inputs within a range"


def wrong_sample_bounds(model: SequenceModel, certificate: Certificate) -> dict[str, Any]:
    """Return how far a wrong raw value moves later outputs, and when it is forgotten, as JSON types.

    An error of several channels is the 2-norm of all errors of a sample, each divided by the scale of its channel.
    docs/reference/certificate.md explains the keys.

    Args:
        model: On any device; it is not changed.
        certificate: Of its layers, for all inputs or for a range that the wrong values do not leave either.
    """
    reason, head = _reason(model), _head(model)
    error, ratio = _units(model)
    is_probability = _is_probability(model)
    effects = []
    for gap in GAPS:
        change = math.inf
        # Tokens are never missing, but any number of them in a row can be wrong.
        if reason is None and (gap != GAPS[1] or not _reads_tokens(model)):
            change = (head(_readout_gains(model, certificate, gap)) + _anchor_gain(model)) * _SAFE
        if math.isfinite(change):
            # The slope of the logistic function is largest where both probabilities are equally far from a half.
            change = math.tanh(change / 4) if is_probability else change * ratio
        effects.append({"missing_after": gap, "output_change": change if math.isfinite(change) else None})
    samples = _forgetting_samples(model, certificate, head, ratio)
    is_fading = all(stack.is_contracting for stack in certificate.stacks)
    return {
        "output": _output_name(model),
        "reason": reason,
        "unit": "tokens" if _reads_tokens(model) else "scales" if error is None else "data",
        "error": error,
        "effects": effects,
        "within_range": certificate.inputs is not None,
        "irregular_time": certificate.max_dt is not None,
        "counted_samples": None if is_fading else _COUNTED_STEPS * model.patches.stride,
        "forgotten_after": samples,
        "forgotten_share": SHARE,
    }


def _reason(model: SequenceModel) -> str | None:
    """Return why no effect of a raw value is derived of a model, as a clause; None if one is."""
    if model.scaling.kind in ("window", "context"):
        return f"the scaling '{model.scaling.kind}' divides by recent values"
    if model.scaling.kind == "log":
        return "a forecast by logarithms moves in proportion to itself"
    if model.resampling is not None:
        return "sequences are resampled, which repeats a value the more often the shorter they are"
    if model.scaling.keep_missing:
        return f"the cell '{model.rnn.first.cell}' fills in missing values by itself"
    if isinstance(model, Forecaster) and model.head_kind == "recursive" and model.horizon > 1:
        return "each forecast is read as the next value"
    return None


def _output_name(model: SequenceModel) -> str:
    if isinstance(model, Classifier):
        return "class probability"
    return "forecast" if isinstance(model, Forecaster) else "probability" if _is_probability(model) else "prediction"


def _is_probability(model: SequenceModel) -> bool:
    return isinstance(model, Classifier) or (isinstance(model, SequencePredictor) and model.output != "real")


def _reads_tokens(model: SequenceModel) -> bool:
    return isinstance(model, SequencePredictor) and model.tokens


def _units(model: SequenceModel) -> tuple[float | None, float]:
    """Return the size of the error that effects are of, and their unit in units of a target's scale.

    The size is in the units of the data: one scale for a probability, 1 for a number. It is None where there are
    several channels, whose errors and effects are in units of their scales, and for tokens.
    """
    if model.scaling.kind == "none":
        return 1.0, 1.0
    known = set(model.future_indices) if isinstance(model, Forecaster) else set()
    measured = [index for index in range(model.input_size) if index not in known]
    if _reads_tokens(model) or len(measured) != 1:
        return None, 1.0
    scale = float(model.scaling.scale[measured[0]])
    if _is_probability(model):
        return scale, 1.0
    if isinstance(model, SequencePredictor):
        if len(model.targets.scale) != 1:
            return None, 1.0
        return 1.0, 1.0 if model.predict_change else float(model.targets.scale[0]) / scale
    # The target of a forecast is the measured channel itself.
    return 1.0, 1.0


def _anchor_gain(model: SequenceModel) -> float:
    """Return the direct effect of the last value on numbers that are predicted as a change from it."""
    is_change = model.predict_change if isinstance(model, SequencePredictor) else False
    return 1.0 if is_change or (isinstance(model, Forecaster) and model.anchor == "last") else 0.0


def _head(model: SequenceModel) -> Callable[[Sequence[_Gains]], float]:
    """Return a function from the gains of each member's readout to the most that an output can change.

    It is that of a number in units of its target's scale, or of the difference of two logits.
    """
    if isinstance(model, Classifier):
        return _classifier_head(model)
    if isinstance(model, Forecaster):
        return _forecaster_head(model)
    assert isinstance(model, SequencePredictor)
    return _predictor_head(model)


def _predictor_head(model: SequencePredictor) -> Callable[[Sequence[_Gains]], float]:
    weight = float64(model.head.weight)  # type: ignore[arg-type]
    # Two classes differ by at most twice the largest distance from the mean of all.
    is_pair = model.output == "categorical"
    rows = (weight - weight.mean(axis=0)) * 2 if is_pair else weight
    # (outputs, members): each member has features of its own. Limits of outputs move none further.
    norms = np.stack([row_norms(part) for part in np.split(rows, len(model.rnn), axis=1)], axis=1) * _SAFE

    def change(gains: Sequence[_Gains]) -> float:
        last = np.array([member["last"] for member in gains])
        with np.errstate(invalid="ignore"):
            return float(np.where(norms == 0, 0.0, norms * last).sum(axis=1).max()) * _SAFE

    return change


def _classifier_head(model: Classifier) -> Callable[[Sequence[_Gains]], float]:
    norms = [pair_norms(weight, model.readout) for weight in head_weights(model.head.maps)]
    temperature = float(model.temperature)

    def change(gains: Sequence[_Gains]) -> float:
        growths = [readout_growth(*member, model.readout) for member in zip(norms, gains, strict=True)]
        return float(averaged_growth(growths).max()) / temperature

    return change


def _forecaster_head(model: Forecaster) -> Callable[[Sequence[_Gains]], float]:
    size, readout = model.feature_size, model.readout

    def part_norms(columns: Matrix) -> list[Matrix]:
        """Return the row norms of each part of the readout."""
        return [row_norms(part) for part in np.split(columns, len(READOUT_PARTS.get(readout, (readout,))), axis=1)]

    # Static covariates come after the features of a member.
    norms = [part_norms(weight[:, :size]) for weight in head_weights(model.head.maps)]
    known = [] if model.known is None else head_weights(model.known)
    # (hidden units,) of each member and part: known values are read beside the features of all members.
    inner_norms = [
        part_norms(known[0][:, size * number : size * (number + 1)]) for number in range(len(norms)) if known
    ]

    def change(gains: Sequence[_Gains]) -> float:
        rows = sum(readout_growth(*member, readout) for member in zip(norms, gains, strict=True)) / len(norms)
        if known:
            # The slope of tanh is at most 1.
            inner = sum(readout_growth(*member, readout) for member in zip(inner_norms, gains, strict=True))
            outer = np.abs(known[1])
            with np.errstate(invalid="ignore"):
                added = np.where(outer == 0, 0.0, outer * inner).sum(axis=1)
            rows = rows + np.tile(added, model.steps)
        # Sorting quantiles moves none of them further than the largest change.
        return float(np.max(rows))

    return change


def _readout_gains(model: SequenceModel, certificate: Certificate, gap: int | None) -> list[_Gains]:
    """Return how far an error of 1 in one scaled sample moves each member's readout, if it is repeated by a gap."""
    size, stride = model.patches.size, model.patches.stride
    if gap is None:
        return _gains_of(model, certificate, None, size)
    # Patches that hold the sample or one that repeats it, and how many of these a patch holds.
    steps, count = -(-(size + gap) // stride), min(size, gap + 1)
    if stride == 1 or model.patches.end_aligned:
        return _gains_of(model, certificate, steps, count)
    # The end of a sequence is padded to a whole patch with missing samples, which repeat its last one.
    if gap:
        return _gains_of(model, certificate, steps, min(size, gap + stride))
    cases = _gains_of(model, certificate, steps, 1), _gains_of(model, certificate, 1, stride)
    return [{part: max(inner[part], end[part]) for part in inner} for inner, end in zip(*cases, strict=True)]


def _gains_of(model: SequenceModel, certificate: Certificate, steps: int | None, count: int) -> list[_Gains]:
    """Return the gains of steps in a row, each with an error of 1 in so many of its samples; None for any number."""
    units, members = model.rnn.first.output_size, []
    for stack, patch_gain in zip(certificate.stacks, _patch_gains(model, count), strict=True):
        total = stack.total_gain()
        last = total if steps is None else _error(stack, certificate, steps)
        largest = math.sqrt(units) * last
        # The 2-norm of all outputs bounds every one of them, and that of irregular steps is not known.
        if steps is not None and certificate.max_dt is None:
            largest = min(largest, total * math.sqrt(steps))
        # No output of a mean moves further than the one that moves furthest.
        gains = {"last": last, "mean": last, "max": largest}
        members.append({part: 0.0 if patch_gain == 0 else patch_gain * gain for part, gain in gains.items()})
    return members


def _error(stack: Cascade, certificate: Certificate, steps: int) -> float:
    """Return how far inputs of the layers that are wrong by 1 in so many steps move their output."""
    if certificate.max_dt is None:
        return stack.missing_data_error(steps, certificate.tolerance)
    errors = [stack.total_gain()]
    if len(stack.bounds) == 1 and stack.rate <= 1:
        # No input moves a state further than in one regular step, and no step moves two states apart.
        (bound,) = stack.bounds
        errors += [
            norm.output_gain * norm.gain * steps + norm.output_input_gain
            for norm in (bound, *bound.other_norms)
            if norm.rate <= 1
        ]
    return min(errors)


def _patch_gains(model: SequenceModel, count: int) -> list[float]:
    """Return how far an error of 1 in so many samples of a patch, one behind the other, moves each member's layers."""
    rnn, scaling, size = model.rnn, model.scaling, model.patches.size
    if isinstance(model, SequencePredictor) and model.tokens:
        # A token is a unit vector, or a vector that was learned.
        table = getattr(scaling, "embedding", None)
        distance = math.sqrt(2) if table is None else 2 * float(row_norms(float64(table.weight)).max())
        return [gain * distance * _SAFE for gain in embedding_gains(model)]
    gains = [gain * math.sqrt(count) * _SAFE for gain in embedding_gains(model)]
    if rnn.embedding and not len(rnn.convolutions):
        channels = scaling.output_size
        for number, weight in enumerate(head_weights(rnn.embeddings)):
            # (embedding, samples, channels) without the mask, which does not change.
            samples = weight[:, : size * channels].reshape(len(weight), size, channels)[:, :, : scaling.size]
            norms = [norm_upper_bound(samples[:, position]) for position in range(size)]
            summed = float(np.convolve(norms, np.ones(count), mode="valid").max())
            gains[number] = min(gains[number], summed * GELU_SLOPE * _SAFE)
    return gains


def _forgetting_samples(
    model: SequenceModel, certificate: Certificate, head: Callable[[Sequence[_Gains]], float], ratio: float
) -> int | None:
    """Return the samples after the last wrong or filled-in one from which on its effect is at most ``SHARE``.

    However many were wrong. With the scaling ``context`` it is the effect in units of the scale, of errors of any size.
    None if none is proved, as of a readout of all outputs.
    """
    is_context = model.scaling.kind == "context"
    if (_reason(model) is not None and not is_context) or model.readout != "last":
        return None
    if certificate.max_dt is not None and certificate.is_deep:
        return None
    unit: _Gains = {"last": 1.0, "mean": 1.0, "max": 1.0}
    effect = head([unit] * len(certificate.stacks)) * ratio * _SAFE
    allowed = 4 * math.atanh(SHARE) if _is_probability(model) else SHARE
    times = [
        0 if effect == 0 else _settling_steps(stack, allowed / effect, None if is_context else gain)
        for stack, gain in zip(certificate.stacks, _patch_gains(model, model.patches.size), strict=True)
    ]
    steps = longest(times)
    if steps is None:
        return None
    size, stride = model.patches.size, model.patches.stride
    # Samples after the wrong one whose patches still depend on it: those that hold it, or hold one that was scaled by
    # statistics of it, or the change of these statistics.
    held = size - 1
    if isinstance(model.scaling, ContextScaling):
        held = model.scaling.window + max(size - 1, stride)
    if certificate.max_dt is None:
        return held + steps * stride
    # In regular samples, of which each can take the longest time; a patch may end just before the time is over.
    return math.ceil(held * certificate.max_dt) + (steps + 1) * stride


def _settling_steps(stack: Cascade, limit: float, error: float | None) -> int | None:
    """Return the steps after which outputs differ by at most a limit, after any number of wrong inputs.

    Args:
        stack: The layers.
        limit: In the 2-norm.
        error: Largest error of the inputs; None for any, after which states differ by the diameters of their balls.
    """
    times = []
    for norm in (stack, *stack.in_other_norms):
        if not (norm.is_contracting and np.isfinite([norm.input_gains, norm.output]).all()):
            continue
        start = norm.diameters
        if error is not None:
            # The largest sizes that inputs which stay wrong can bring about.
            sizes = np.linalg.solve(np.eye(len(norm.step)) - norm.step, norm.input_gains)
            start = np.asarray(sizes * (error * _SAFE), dtype=np.float64)
        times.append(norm.settling_time(limit, start, initial_effect=1.0))
    return shortest(times)


def certificate_document(
    module: nn.Module,
    *,
    inputs: InputRange | None = None,
    norms: Iterable[Mapping[str, Any]] | None = None,
    frequency: str | None = None,
    longest: int | None = None,
) -> dict[str, Any]:
    """Return the certificate for all inputs, with a second one in ``bounded_inputs``.

    Args:
        module: As of :func:`stablernn.certificates.certificate.certify`.
        inputs: Range of the raw inputs of the second certificate; None, or a model whose inputs have no range, for
            none.
        norms: As of :func:`stablernn.certificates.certificate.prove`.
        frequency: As of :func:`stored_document`.
        longest: As of :func:`stored_document`.

    Raises:
        ConfigError: If the range does not fit the model.
        CertificateError: If a weight is not finite.
    """
    certificate, bounded = prove_both(module, inputs=inputs, norms=norms)
    return stored_document(module, certificate, bounded, frequency=frequency, longest=longest)


def prove_both(
    module: nn.Module,
    *,
    inputs: InputRange | None = None,
    norms: Iterable[Mapping[str, Any]] | None = None,
) -> tuple[Certificate, Certificate | None]:
    """Return the certificate for all inputs, and the one for inputs within a range.

    The arguments and errors are those of :func:`certificate_document`.
    """
    norms = None if norms is None else list(norms)
    # With norms nothing is searched for, and nothing takes long.
    stages = (ALL_STAGE, WITHIN_STAGE) if norms is None else (None, None)
    certificate = prove(module, norms=norms, stage=stages[0])
    if inputs is None or (isinstance(module, SequenceModel) and not module.scaling.has_channel_range):
        return certificate, None
    return certificate, certificate_within(module, certificate, inputs, norms, stage=stages[1])


def stored_document(
    module: nn.Module,
    certificate: Certificate,
    bounded: Certificate | None,
    *,
    frequency: str | None = None,
    longest: int | None = None,
) -> dict[str, Any]:
    """Return the document of two certificates, the second of which goes into ``bounded_inputs``.

    Args:
        module: As of :func:`certificate_document`; of a model the document also has ``wrong_sample`` and ``in_words``.
        certificate: For all inputs, or for those that a user named.
        bounded: For inputs within the range of training; None for none.
        frequency: Alias of the time grid, as :func:`stablernn.data.table.frequency.parse_frequency` takes it, for
            durations in words; None for samples.
        longest: Samples of the longest training sequence; None if they are not known.
    """
    document = {**certificate.document(), "bounded_inputs": None if bounded is None else _bounded_summary(bounded)}
    if isinstance(module, SequenceModel):
        bounds = described_bounds(module, certificate, bounded)
        document["wrong_sample"] = bounds | {"frequency": frequency, "longest": longest}
        document["in_words"] = describe_guarantee(bounds, frequency=frequency, longest=longest)
    return document


def series_facts(facts: object) -> dict[str, Any]:
    """Return ``frequency`` and ``longest`` for :func:`stored_document`, None where there is none.

    Args:
        facts: The content of ``data.json``, or ``wrong_sample`` of a document, which any program may have written.
    """
    facts = facts if isinstance(facts, Mapping) else {}
    frequency, longest = facts.get("frequency"), facts.get("longest")
    return {
        "frequency": frequency if isinstance(frequency, str) else None,
        "longest": longest if isinstance(longest, int) else None,
    }


def described_bounds(model: SequenceModel, certificate: Certificate, bounded: Certificate | None) -> dict[str, Any]:
    """Return what is proved of raw values: for all inputs or, if nothing is, for those within the range.

    The arguments are those of :func:`stored_document`.
    """
    bounds = wrong_sample_bounds(model, certificate)
    if bounded is not None and not states_anything(bounds):
        within = wrong_sample_bounds(model, bounded)
        bounds = within if states_anything(within) else bounds
    return bounds


def certificate_within(
    module: nn.Module,
    certificate: Certificate,
    inputs: InputRange,
    norms: Iterable[Mapping[str, Any]] | None = None,
    *,
    stage: str | None = None,
) -> Certificate:
    """Return the certificate for inputs within a range, without what quantized weights change.

    Args:
        module: As of :func:`certificate_document`; a model must have inputs with a range.
        certificate: Its certificate for all inputs.
        inputs: Range of the raw inputs.
        norms: As of :func:`stablernn.certificates.certificate.prove`.
        stage: As of :func:`stablernn.certificates.certificate.prove`.
    """
    cells = [cell for cell in module.modules() if isinstance(cell, StableCell)]
    gains_by_range = any(type(cell).step_bound_within is not StableCell.step_bound_within for cell in cells)
    if gains_by_range and certificate.max_dt is None:
        return prove(module, stored=False, norms=norms, inputs=inputs, stage=stage)
    # Nothing more is proved within a range; a second search for norms would end at the same ones.
    return replace(certificate, inputs=inputs)


def _bounded_summary(certificate: Certificate) -> dict[str, Any]:
    document = certificate.document()
    # The intervals of the coordinates are long; `certify --inputs-within` computes them.
    balls = [{key: ball[key] for key in ("state", "norm", "centre", "radius")} for ball in document["state_balls"]]
    return {**{key: document[key] for key in _BOUNDED_KEYS}, "state_balls": balls}
