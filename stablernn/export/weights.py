"""Serialized weights of a model, and the digest by which reports refer to them."""

from __future__ import annotations

import hashlib

from safetensors.torch import save

from stablernn.nn.models import SequenceModel


def serialize_weights(model: SequenceModel) -> bytes:
    """Return the content of ``weights.safetensors`` in an export of this model; floats are float32."""
    # An export is float32 whatever the dtype of training, and safetensors requires contiguous tensors.
    tensors = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
    }
    return save(tensors)


def weights_digest(model: SequenceModel) -> str:
    """Return ``sha256:`` and the hash of that file; it is the same before the export and in a registry version."""
    return f"sha256:{hashlib.sha256(serialize_weights(model)).hexdigest()}"
