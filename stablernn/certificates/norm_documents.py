"""Norms of layers as JSON types, by which anybody can check the rates of a certificate."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from stablernn.bounds.linalg import Matrix
from stablernn.bounds.lure import GivenNorm
from stablernn.bounds.step_bound import StepBound


def norm_document(bound: StepBound, states: list[str]) -> dict[str, Any]:
    """Return the norm of a bound as JSON types."""
    document: dict[str, Any] = {"states": states, "norm": norm_name(bound)}
    if bound.metric is not None:
        document["matrix"] = _encode_matrix(bound.metric)
    if bound.multipliers is not None:
        document["multipliers"] = bound.multipliers.tolist()
        if bound.neuron_scale is not None:
            document["neuron_scale"] = bound.neuron_scale.tolist()
    if bound.weights is not None:
        document["weights"] = bound.weights.tolist()
    return document


def norm_name(bound: StepBound) -> str:
    """Return the name of the norm of a bound."""
    # A metric already makes the norm of the bound weighted-l2.
    return f"weighted-{bound.norm}" if bound.weights is not None else str(bound.norm)


def decode_norm(layer_norm: Mapping[str, Any]) -> tuple[set[str], GivenNorm] | None:
    """Return states, metric and multipliers of an entry of ``metrics``; None if it lacks one or is damaged."""
    try:
        states = set(layer_norm["states"])
        multipliers = np.array(layer_norm["multipliers"], dtype=np.float64)
        matrix = layer_norm.get("matrix")
        if matrix is None:
            return states, (None, multipliers)
        content = np.frombuffer(base64.b64decode(matrix["float32_base64"]), dtype="<f4")
        return states, (content.reshape(matrix["shape"]).astype(np.float64), multipliers)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        # Anything may stand in a stored document. Without its norm the rate that it states is not proved.
        return None


def norms_of_layer(norms: list[tuple[set[str], GivenNorm]], names: Mapping[str, str]) -> list[GivenNorm]:
    """Return the norms of one layer, given its names of states."""
    return [norm for states, norm in norms if states <= set(names.values())]


def _encode_matrix(matrix: Matrix) -> dict[str, Any]:
    """Encode a matrix of float32 numbers in base64, which is short."""
    content = base64.b64encode(matrix.astype("<f4").tobytes()).decode("ascii")
    return {"shape": list(matrix.shape), "float32_base64": content}
