"""The weights of a model as they are exported, and the hash by which a report says whose it is."""

from __future__ import annotations

import hashlib

from safetensors.torch import save

from stablernn.nn.models import SequenceModel


def weights_file(model: SequenceModel) -> bytes:
    """What ``weights.safetensors`` of an export of this model holds; floats are float32."""
    tensors = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
    }
    return save(tensors)


def weights_digest(model: SequenceModel) -> str:
    """``sha256:`` and the hash of that file: the same before the export and in the version."""
    return f"sha256:{hashlib.sha256(weights_file(model)).hexdigest()}"
