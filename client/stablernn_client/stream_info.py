"""What the server says of a model when a socket opens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablernn_client.errors import ProtocolError

_DTYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype(np.float32), "INT64": np.dtype(np.int64)}


@dataclass(frozen=True)
class StreamInfo:
    """The first message of a socket.

    Attributes:
        model: Its name.
        version: Its version.
        digest: Digest of the version.
        sample_shape: Shape of one step's sample.
        dtype: Of the samples: float32, or int64 for models that follow a text.
        outputs: Shapes by name, for one step.
        labels: The classes of a classifier; None for other models.
        max_streams: The most streams that one socket carries.
        has_new_streams: Whether streams may begin with this version; if not, they only go on from state tokens.
    """

    model: str
    version: str
    digest: str
    sample_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    outputs: dict[str, tuple[int, ...]]
    labels: tuple[str, ...] | None
    max_streams: int
    has_new_streams: bool

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> StreamInfo:
        """From the server's first message.

        Raises:
            ProtocolError: If it is not that.
        """
        try:
            return cls(
                model=str(message["model"]),
                version=str(message["model_version"]),
                digest=str(message["digest"]),
                sample_shape=tuple(int(size) for size in message["sample_shape"]),
                dtype=_DTYPES[message["datatype"]],
                outputs={item["name"]: tuple(int(size) for size in item["shape"]) for item in message["outputs"]},
                labels=None if message["labels"] is None else tuple(message["labels"]),
                max_streams=int(message["max_streams"]),
                has_new_streams=bool(message["new_streams"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"The server's first message says not what its streams take ({error!r}).") from error
