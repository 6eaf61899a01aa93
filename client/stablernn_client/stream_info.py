"""The server's description of a model, sent when a WebSocket opens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablernn_client.errors import ProtocolError

_DTYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype(np.float32), "INT64": np.dtype(np.int64)}


@dataclass(frozen=True)
class StreamInfo:
    """The first message of a WebSocket.

    Attributes:
        model: Name of the model.
        version: Its version.
        digest: Digest of the version.
        sample_shape: Shape of one sample.
        patch_stride: Samples after which a stream has outputs; 1 for models without patches.
        dtype: Data type of the samples: float32, or int64 for models of text tokens.
        outputs: Shapes of the outputs after a sample, by name.
        labels: Class labels of a classifier; None for other models.
        max_streams: Maximum number of streams on one WebSocket.
        has_new_streams: True if new streams can start with this version; if False, streams can only resume from state
            tokens.
    """

    model: str
    version: str
    digest: str
    sample_shape: tuple[int, ...]
    patch_stride: int
    dtype: np.dtype[Any]
    outputs: dict[str, tuple[int, ...]]
    labels: tuple[str, ...] | None
    max_streams: int
    has_new_streams: bool

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> StreamInfo:
        """Parse the server's first message.

        Raises:
            ProtocolError: If it is not such a message.
        """
        try:
            return cls(
                model=str(message["model"]),
                version=str(message["model_version"]),
                digest=str(message["digest"]),
                sample_shape=tuple(int(size) for size in message["sample_shape"]),
                patch_stride=int(message["patch_stride"]),
                dtype=_DTYPES[message["datatype"]],
                outputs={output["name"]: tuple(int(size) for size in output["shape"]) for output in message["outputs"]},
                labels=None if message["labels"] is None else tuple(message["labels"]),
                max_streams=int(message["max_streams"]),
                has_new_streams=bool(message["new_streams"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            # Also another service's message, which has none of these fields.
            raise ProtocolError(f"The server's first message does not describe its streams ({error!r}).") from error
