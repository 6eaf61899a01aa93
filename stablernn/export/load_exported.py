"""Loading of an exported model from its files, and recomputation of its certificate and parity report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from stablernn.certificates.input_range import InputRange
from stablernn.certificates.stored_certificate import certificate_document, series_facts
from stablernn.errors import CheckpointError
from stablernn.export import parity_lengths
from stablernn.export.parity import check_parity
from stablernn.nn.models import SequenceModel, build_model


def reload(config: bytes, weights: bytes) -> SequenceModel:
    """Rebuild the model of an exported folder, in evaluation mode on the CPU.

    Args:
        config: The bytes of ``config.json``.
        weights: The bytes of ``weights.safetensors``.

    Raises:
        CheckpointError: If no model can be built from them.
    """
    try:
        model = build_model(json.loads(config)["model"])
        # Copies: the bytes belong to the caller, and safetensors returns views of them.
        model.load_state_dict({name: tensor.clone() for name, tensor in load(weights).items()})
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"config.json and weights.safetensors do not make a model ({error}). They were written by another version "
            "of stablernn, or not by stablernn."
        ) from error
    # The scaling comes from the file, so the model does not have to warn of a missing fit_scaling().
    model.mark_fitted()
    return model.eval().requires_grad_(False)


def recompute(files: Mapping[str, bytes], longest: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """Recompute the certificate and the parity report of an exported folder.

    Args:
        files: The bytes of ``config.json``, ``weights.safetensors``, ``sequence.onnx`` and, unless the model resamples
            complete sequences, ``step.onnx``, by name. Of ``certificate.json``, if it is there, the norms are verified;
            none are searched.
        longest: Sequence length at which parity is checked in addition to the default lengths.

    Raises:
        CheckpointError: If no model can be built from them.
        ParityError: If the outputs of the graphs differ from those of the model.
    """
    model = reload(files["config.json"], files["weights.safetensors"])
    step = files["step.onnx"] if model.resampling is None else None
    parity = check_parity(model, step, files["sequence.onnx"], lengths=parity_lengths(longest))
    return _recomputed(model, files), parity


def recompute_certificate(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Recompute the certificate of an exported folder by its norms, as :func:`recompute` does.

    Args:
        files: The bytes of ``config.json``, ``weights.safetensors`` and, if it is there, ``certificate.json``, by name.

    Raises:
        CheckpointError: If no model can be built from them.
    """
    return _recomputed(reload(files["config.json"], files["weights.safetensors"]), files)


def _recomputed(model: SequenceModel, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the certificate by the stored norms, and for the stored range of inputs; none of them if there are none.

    Raises:
        ConfigError: If the range does not fit the model.
    """
    try:
        stored = json.loads(files["certificate.json"])
    except (KeyError, ValueError):
        stored = None
    stored = stored if isinstance(stored, dict) else {}
    norms, bounded = stored.get("metrics"), stored.get("bounded_inputs")
    inputs = InputRange.from_document(bounded.get("inputs")) if isinstance(bounded, dict) else None
    norms = norms if isinstance(norms, list) else []
    return certificate_document(model, inputs=inputs, norms=norms, **series_facts(stored.get("wrong_sample")))
