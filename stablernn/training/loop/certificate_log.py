"""Certificates during training: what is proved after each epoch, and the check of the best weights at the end."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from stablernn.bounds.linalg import norm_upper_bound
from stablernn.cells._base import float64
from stablernn.certificates.certificate import KINDS, Certificate, prove
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.plain_words import largest_radius
from stablernn.certificates.projection import certified_kind, is_projected
from stablernn.certificates.stored_certificate import certificate_within
from stablernn.errors import CertificateError, TrainingError
from stablernn.nn.models import SequenceModel

LARGEST = 256
"""Length of a state up to which epochs are certified."""
MOST_SECONDS = 1.0
"""CPU time that certifying a model may take for it to be done again."""


def takes_long(model: SequenceModel) -> bool:
    """Return True if the layers are too large to be certified quickly; the bound of fixed ones is a constant."""
    cell = model.rnn.cells[0]
    return cell.hidden_size > LARGEST and not cell.is_fixed


class StabilityLog:
    """Log of what is proved of a model as it trains, at a bounded cost.

    Args:
        model: The model, which changes.
        certify_epochs: Whether epochs are certified; the model can be at any time.
    """

    def __init__(self, model: SequenceModel, *, certify_epochs: bool = True) -> None:
        self._model = model
        self._is_over = not certify_epochs or takes_long(model)
        self._proved: tuple[dict[str, Tensor], Certificate] | None = None

    def prove(self) -> Certificate:
        """Return the certificate of the model as it is, in evaluation mode; that of the same weights is computed once.

        Raises:
            CertificateError: If a weight is not finite.
        """
        weights = {**dict(self._model.named_parameters()), **dict(self._model.rnn.named_buffers(prefix="rnn"))}
        if self._proved is not None and all(torch.equal(weights[name], old) for name, old in self._proved[0].items()):
            return self._proved[1]
        was_training = self._model.training
        self._model.eval()
        try:
            certificate = prove(self._model, stored=False)
        finally:
            self._model.train(was_training)
        self._proved = {name: weight.detach().clone() for name, weight in weights.items()}, certificate
        return certificate

    def prove_within(self, inputs: InputRange) -> Certificate:
        """Return the certificate of the model for inputs within a range.

        Args:
            inputs: Range of the raw inputs, which the model's scaling must keep bounded.

        Raises:
            CertificateError: If a weight is not finite.
        """
        was_training = self._model.training
        self._model.eval()
        try:
            return certificate_within(self._model, self.prove(), inputs)
        finally:
            self._model.train(was_training)

    def prove_in_short(self, inputs: InputRange | None) -> dict[str, Any] | None:
        """Return kind and rate of the model; None if computing them would take long, or a weight is not finite.

        ``radius`` is that of the largest ball of a model that is bounded, of a cell without trained weights that of the
        output, since its other states are counts and sums. Of a model of which nothing is proved for all
        inputs, ``bounded_inputs`` has the same for those within a range.

        Args:
            inputs: The range; None if there is none.
        """
        if takes_long(self._model):
            return None
        try:
            certificate = self.prove()
        except CertificateError:
            return None
        is_fixed = self._model.rnn.cells[0].is_fixed
        short = _in_short(certificate, is_fixed)
        if certificate.kind == "none" and inputs is not None:
            short["bounded_inputs"] = _in_short(self.prove_within(inputs), is_fixed)
        return short

    def entry(self, epoch: int) -> dict[str, Any]:
        """Return ``{"stability": ...}`` for the line of an epoch; empty if none is due or no rate of the cell is known.

        Args:
            epoch: From 1.
        """
        if takes_long(self._model) and epoch == 1:
            size = self._model.rnn.cells[0].hidden_size
            reason = f"hidden_size {size} is above {LARGEST}; `stablernn certify` says in the end what is proved"
            return {"stability": {"skipped": reason}}
        if self._is_over or not is_due(epoch):
            return {}
        # CPU time, so that a busy machine does not change what is logged.
        started, was_training = time.process_time(), self._model.training
        self._model.eval()
        try:
            # Without a search for a better norm, which an epoch is too short for.
            figures = stability_figures(self._model, prove(self._model, stored=False, norms=()))
        except CertificateError:
            # A weight is not finite; the trainer itself reports that.
            return {}
        finally:
            self._model.train(was_training)
        seconds = time.process_time() - started
        if figures and seconds > MOST_SECONDS:
            self._is_over = True
            reason = f"later epochs are not certified, since this took more than {MOST_SECONDS:g} s"
            figures = {**figures, "skipped": reason}
        return {"stability": figures} if figures else {}


def _in_short(certificate: Certificate, is_fixed: bool) -> dict[str, Any]:
    # The rate of a weaker kind bounds nothing that a reader would take it for.
    has_rate = certificate.kind in ("contracting", "non-expansive")
    short = {"kind": certificate.kind, "contraction_rate": certificate.rate if has_rate else None}
    # Without the radius, nobody could tell whether the bound excludes anything.
    balls = certificate.balls[:1] if is_fixed else certificate.balls
    return short | ({"radius": largest_radius(balls)} if certificate.kind == "bounded" else {})


def is_due(epoch: int) -> bool:
    """Return True if an epoch is one of 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on: twelve in the first eighty."""
    # Two epochs for each power of two: multiples of half of the largest one up to the epoch.
    half = 1 << max(0, epoch.bit_length() - 2)
    return epoch % half == 0


def stability_figures(model: SequenceModel, certificate: Certificate) -> dict[str, Any]:
    """Return kind, rate, figures and conditions of a model; empty if no rate is known of its cell.

    Args:
        model: The model, in evaluation mode.
        certificate: Its certificate.

    Returns:
        ``kind`` and ``contraction_rate`` as of the certificate; ``exponent_bound``, the logarithm of the rate, which no
        Lyapunov exponent of the layers exceeds; ``figures`` with ``norm_W`` of each recurrent matrix; ``conditions``,
        true or false for each of them.
    """
    rate = certificate.rate
    if rate is None:
        return {}
    document = certificate.document()
    return {
        "kind": certificate.kind,
        "contraction_rate": rate,
        "exponent_bound": math.log(rate) if rate > 0 else None,
        "figures": {**_norms(model, certificate), **document["figures"]},
        "conditions": {condition["name"]: condition["holds"] for condition in document["conditions"]},
    }


def check_certified(model: SequenceModel, certificate: Certificate) -> None:
    """Refuse weights of which less is proved than ``training.certified`` promised.

    Args:
        model: The model.
        certificate: What is proved of it; of the cells in :data:`stablernn.certificates.projection.WITHIN_RANGE` for
            inputs within the range of training.

    Raises:
        TrainingError: If less is proved.
    """
    cell = model.rnn.cells[0]
    required_kind = certified_kind(cell)
    # Kinds are ordered from the strongest to the weakest.
    if KINDS.index(certificate.kind) > KINDS.index(required_kind):
        rate = "no rate" if certificate.rate is None else f"a rate of {certificate.rate:.7g}"
        # Cells that are certified by construction take no margin.
        margin = "Set a larger training.certified_margin or a" if is_projected(cell) else "Set a"
        raise TrainingError(
            f"The best weights are '{certificate.kind}', with {rate}, and training.certified asks for "
            f"'{required_kind}'. {margin} lower training.lr, or train with --free."
        )


def _norms(model: SequenceModel, certificate: Certificate) -> dict[str, float]:
    """Return the 2-norm of each layer's recurrent matrix, by names like those of the certificate's figures."""
    members, layers = len(certificate.stacks), len(certificate.stacks[0].bounds)
    norms = {}
    for number, cell in enumerate(model.rnn.cells):
        member, depth = divmod(number, layers)
        prefix = (f"member {member} " if members > 1 else "") + (f"layer {depth} " if layers > 1 else "")
        # Raised by cells without one recurrent matrix.
        with suppress(NotImplementedError):
            norms[f"{prefix}norm_W"] = norm_upper_bound(float64(cell.recurrent_matrix()))
    return norms
