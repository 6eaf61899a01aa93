"""A stream: the state that a model carries from one sample to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from stablernn_registry import RefError, parse_ref
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.state_token import StreamSnapshot
from stablernn_runtime.stream_clock import Clock
from stablernn_runtime.stream_spec import stream_spec
from stablernn_server.arrays import Array
from stablernn_server.errors import UnknownModelError


class Versions(Protocol):
    """The models of a server, as :class:`.ModelRepository` provides them."""

    async def find_by_digest(self, digest: str, name: str, version: int, deadline: float | None = None) -> ServedModel:
        """Return the version with a digest, opened if necessary."""
        ...


@dataclass(slots=True)
class Stream:
    """One stream, as it is after its last sample.

    Attributes:
        model: The model that it began with; a newer version does not take it over.
        step: Samples taken.
        states: By input name, ``(1, ...)``, with the samples of an unfinished patch and the states of the estimates
            that the stream updates; empty at the beginning, which stands for zeros.
        static: ``(1, names)``, where the model takes any.
        clock: The time of the last reading.
    """

    model: ServedModel
    step: int = 0
    states: dict[str, Array] = field(default_factory=dict)
    static: Array | None = None
    clock: Clock = Clock()

    def snapshot(self) -> StreamSnapshot:
        """Return the content of a state token of the stream."""
        shapes = stream_spec(self.model).state_shapes
        # A stream that has not begun has no states yet, a token of it has zeros.
        states = {
            name: self.states[name][0] if name in self.states else np.zeros(shape, dtype)
            for name, (shape, dtype) in shapes.items()
        }
        static = np.empty(0, np.float32) if self.static is None else self.static[0]
        return StreamSnapshot(self.model.ref, self.model.digest, self.step, self.clock, static, states)


def matches_reference(snapshot: StreamSnapshot, reference: str) -> bool:
    """Return whether a reference may stand for the version of a state token.

    A name alone or with an alias may stand for any version of the model, since the token itself says which one.

    Args:
        snapshot: From :meth:`StateTokens.read`.
        reference: ``NAME``, ``NAME@ALIAS`` or ``NAME:VERSION``.

    Raises:
        UnknownModelError: If the reference is none of these.
    """
    try:
        ref = parse_ref(reference)
    except RefError as error:
        raise UnknownModelError(str(error)) from error
    name, _, number = snapshot.model.rpartition(":")
    return ref.name == name and ref.version in (None, int(number))


async def restore_stream(snapshot: StreamSnapshot, versions: Versions, deadline: float | None = None) -> Stream:
    """Return the stream of a state token.

    Args:
        snapshot: From :meth:`StateTokens.read`.
        versions: The models of this server.
        deadline: Until when to wait for the version to be opened, on the clock of the event loop.

    Raises:
        VersionGoneError: If the version of the token is not available any more.
        BadTokenError: If the states of the token do not fit the version.
    """
    name, _, number = snapshot.model.rpartition(":")
    model = await versions.find_by_digest(snapshot.digest, name, int(number), deadline)
    return stream_from_snapshot(snapshot, model)


def stream_from_snapshot(snapshot: StreamSnapshot, model: ServedModel) -> Stream:
    """Return the stream of a state token whose model is open.

    Raises:
        BadTokenError: If the states of the token do not fit the model.
    """
    content = stream_spec(model).check_token(snapshot)
    # With an axis over streams: (1, ...).
    states = {name: value[None] for name, value in content.states.items()}
    static = content.static[None] if content.static.size else None
    return Stream(model, content.step, states, static, content.clock)


def copy_views(states: Mapping[str, Array]) -> dict[str, Array]:
    """Return states without views, which keep the array of a whole batch alive."""
    # `base` is None for arrays that own their memory.
    return {name: value if value.base is None else value.copy() for name, value in states.items()}
