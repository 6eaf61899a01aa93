"""A published model again, from its own files, and what was said of it computed anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from stablernn.certificates.certificate import prove
from stablernn.errors import CheckpointError
from stablernn.export.parity import check_parity
from stablernn.nn.models import SequenceModel, build_model


def reload(config: bytes, weights: bytes) -> SequenceModel:
    """The model of an exported folder, in evaluation mode on the CPU.

    Args:
        config: The bytes of ``config.json``.
        weights: Those of ``weights.safetensors``.

    Raises:
        CheckpointError: If they do not make a model.
    """
    try:
        model = build_model(json.loads(config)["model"])
        # A copy: the bytes belong to the caller, and safetensors hands out views of them.
        model.load_state_dict({name: tensor.clone() for name, tensor in load(weights).items()})
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"config.json and weights.safetensors do not make a model ({error}). They were written by another version "
            "of stablernn, or not by stablernn."
        ) from error
    model.mark_fitted()
    return model.eval().requires_grad_(False)


def recompute(files: Mapping[str, bytes], longest: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """Certificate and parity report of an exported folder.

    Args:
        files: The bytes of ``config.json``, ``weights.safetensors``, ``step.onnx`` and ``sequence.onnx``, by name.
        longest: A length at which parity is checked beside the usual ones.

    Raises:
        CheckpointError: If they do not make a model.
        ParityError: If the graphs' numbers differ from those of the weights.
    """
    from stablernn.export import parity_lengths

    model = reload(files["config.json"], files["weights.safetensors"])
    parity = check_parity(model, files["step.onnx"], files["sequence.onnx"], lengths=parity_lengths(longest))
    return prove(model).document(), parity
