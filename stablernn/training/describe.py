"""The description of a run's data, as ``data.json`` holds it."""

from __future__ import annotations

from typing import Any

from stablernn.data.step_data import Data
from stablernn.nn.models import SequenceModel
from stablernn.training.tasks import task_for


def describe_data(data: Data, model: SequenceModel) -> dict[str, Any]:
    """Return the content of ``data.json``: all that is needed to read more data of the same kind, and the notes."""
    scaling = model.scaling
    return {
        "name": data.name,
        "task": data.task,
        "fingerprint": data.fingerprint,
        **task_for(data).describe(),
        "scaling": {
            "kind": scaling.kind,
            "mean": scaling.mean.tolist(),
            "scale": scaling.scale.tolist(),
            "window": model.window,
            "mask_channel": scaling.mask_channel,
        },
        "notes": data.notes,
    }
