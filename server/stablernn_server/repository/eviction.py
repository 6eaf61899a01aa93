"""Closes models: to fit a memory budget, and those that only state tokens still use."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from weakref import WeakSet

from stablernn_runtime.served_model import ServedModel

VersionKey = tuple[str, int]
"""Name and number of a version."""

logger = logging.getLogger(__name__)

MAX_TOKEN_MODELS = 8
"""Versions that are open for state tokens only: after several releases in a row, streams of as many versions drain side
by side, and opening a version takes many times as long as a step."""


class TokenModels:
    """Open models that are not served and only continue streams of state tokens, at most :data:`MAX_TOKEN_MODELS`."""

    def __init__(self) -> None:
        # By digest, the most recently used last.
        self._models: dict[str, ServedModel] = {}

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def add(self, model: ServedModel) -> bool:
        """Add a model, or mark it as the most recently used; let go of the least recently used beyond the limit.

        Returns:
            Whether it was not among them before.
        """
        previous = self._models.pop(model.digest, None)
        self._models[model.digest] = model
        while len(self._models) > MAX_TOKEN_MODELS:
            del self._models[next(iter(self._models))]
        return previous is not model

    def discard(self, digest: str) -> bool:
        """Let go of a model; return whether it was there."""
        return self._models.pop(digest, None) is not None

    def close_unused(self, since: float) -> bool:
        """Let go of the models that were last used before ``since``, on the monotonic clock; return whether any was."""
        expired = [digest for digest, model in self._models.items() if model.last_used < since]
        for digest in expired:
            logger.info("%s is closed: the state tokens of its streams have expired", self._models.pop(digest).ref)
        return bool(expired)


class MemoryBudget:
    """The memory that all living models take, whoever holds them, and its limit.

    Models that sessions and requests hold live on after they are closed, and count as long as they do.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        """Set the limit.

        Args:
            limit_bytes: The limit; None for none.
        """
        self._limit_bytes = limit_bytes
        self._living: WeakSet[ServedModel] = WeakSet()

    def add(self, model: ServedModel) -> None:
        """Count a model as long as it lives."""
        self._living.add(model)

    def make_room(
        self,
        needed: ServedModel,
        served: Iterable[ServedModel],
        token_models: TokenModels,
        close: Callable[[str, int], None],
    ) -> None:
        """Close the least recently used models until all that lives fits the limit, or none is left to close.

        Args:
            needed: A model that stays open.
            served: The open models that are served; an iterator, since a list would keep them alive.
            token_models: The models that are open for state tokens.
            close: Closes a version that is served, by name and number.
        """
        if self._limit_bytes is None:
            return
        before = self._living_bytes()
        # Not the models themselves, or they would live as long as this list.
        idle: list[tuple[float, str, VersionKey]] = sorted(
            (model.last_used, model.digest, (model.name, model.version))
            for models in (served, token_models)
            for model in models
            if model is not needed
        )
        for _, digest, (name, number) in idle:
            if self._living_bytes() <= self._limit_bytes:
                break
            if not token_models.discard(digest):
                close(name, number)
                logger.info("%s:%d is closed to make room", name, number)
        if self._living_bytes() < before:
            trim_memory()

    def _living_bytes(self) -> int:
        return sum(model.memory_bytes for model in self._living)


def trim_memory() -> None:
    """Return freed memory to the system: glibc keeps it, and a server that changes models would seem to leak."""
    if sys.platform == "linux":
        # Other C libraries, such as musl, do not have it.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
