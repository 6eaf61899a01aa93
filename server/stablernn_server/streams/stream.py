"""A stream: the state that a model carries from one sample to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import RefError, parse_ref
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.state_token import StreamSnapshot
from stablernn_runtime.stream_clock import Clock
from stablernn_runtime.stream_spec import stream_spec
from stablernn_server.errors import BadTokenError, UnknownModelError

Array = NDArray[Any]


class Versions(Protocol):
    """Where a token finds its model again."""

    async def find_by_digest(
        self, digest: str, name: str, version: int, deadline: float | None = None
    ) -> ServedModel: ...


@dataclass(slots=True)
class Stream:
    """One stream, as it is after its last sample.

    Attributes:
        model: The model that it began with; a newer version does not take it over.
        step: Samples taken.
        states: By input name, ``(1, ...)``; none at the beginning, which is zeros.
        static: ``(1, names)``, where the model takes any.
        clock: The time of the last reading.
    """

    model: ServedModel
    step: int = 0
    states: dict[str, Array] = field(default_factory=dict)
    static: Array | None = None
    clock: Clock = Clock()

    def portable(self) -> StreamSnapshot:
        """What a token of it holds."""
        shapes = stream_spec(self.model).state_shapes
        states = {name: self.states[name][0] if name in self.states else np.zeros(*of) for name, of in shapes.items()}
        static = np.empty(0, np.float32) if self.static is None else self.static[0]
        return StreamSnapshot(self.model.ref, self.model.digest, self.step, self.clock, static, states)


def is_named(portable: StreamSnapshot, reference: str) -> bool:
    """Return whether a reference may stand for the version of a state token.

    A name alone or with an alias may stand for any version of the model, since the token itself says which one.

    Args:
        portable: From :meth:`StateTokens.read`.
        reference: ``NAME``, ``NAME@ALIAS`` or ``NAME:VERSION``.

    Raises:
        UnknownModelError: If the reference is none of these.
    """
    try:
        ref = parse_ref(reference)
    except RefError as error:
        raise UnknownModelError(str(error)) from error
    name, _, number = portable.model.rpartition(":")
    return ref.name == name and ref.version in (None, int(number))


async def restored(portable: StreamSnapshot, versions: Versions, deadline: float | None = None) -> Stream:
    """The stream of a token.

    Args:
        portable: From :meth:`StateTokens.read`.
        versions: The models of this server.
        deadline: Until when to wait for the version to be opened, on the clock of the event loop.

    Raises:
        VersionGoneError: If the version that it belongs to is not there any more.
        BadTokenError: If its states are not those of the version.
    """
    name, _, number = portable.model.rpartition(":")
    return resumed(portable, await versions.find_by_digest(portable.digest, name, int(number), deadline))


def resumed(portable: StreamSnapshot, model: ServedModel) -> Stream:
    """The stream of a token of a known model.

    Raises:
        BadTokenError: If its states are not those of the model.
    """
    plan = stream_spec(model)
    shapes = {name: (value.shape, value.dtype) for name, value in portable.states.items()}
    if shapes != plan.state_shapes or portable.static.size not in (0, plan.static_size):
        raise BadTokenError(f"The state token holds states that are not those of {model.label}; begin anew.")
    states = {name: value[None] for name, value in portable.states.items()}
    static = portable.static[None] if portable.static.size else None
    return Stream(model, portable.step, states, static, portable.clock)


def owned(states: Mapping[str, Array]) -> dict[str, Array]:
    """States that keep no one else's alive: those of a batch are parts of one array."""
    return {name: value if value.base is None else value.copy() for name, value in states.items()}
