"""Dropout of a batch that several processes share: each drops what a single process would drop of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn


class SharedDraws:
    """Random numbers for a whole batch, of which a process uses those of its rows.

    Args:
        rows: Rows of this process.
        total: Rows of the whole batch.
        device: Device of the model.
    """

    def __init__(self, rows: slice, total: int, device: torch.device) -> None:
        self._rows = rows
        self._total = total
        self._device = device
        # Of the generators that all processes draw from alike.
        self._states = self._get_states()

    def dropout(self, features: Tensor, probability: float) -> Tensor:
        """Return features, ``(batch, ...)``, with some set to 0 and the others scaled."""
        before = self._get_states()
        self._set_states(self._states)
        mask = nn.functional.dropout(features.new_ones(self._total, *features.shape[1:]), probability)
        self._states = self._get_states()
        self._set_states(before)
        return features * mask[self._rows]

    def restore(self) -> None:
        """Give the generators the state that all processes have alike."""
        self._set_states(self._states)

    def _get_states(self) -> list[Tensor]:
        on_gpu = [torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else []
        return [torch.get_rng_state(), *on_gpu]

    def _set_states(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1], self._device)


_DRAWS: ContextVar[SharedDraws | None] = ContextVar("shared_draws", default=None)


@contextmanager
def shared_draws(draws: SharedDraws) -> Iterator[None]:
    """Use draws for the whole batch in :func:`shared_dropout` inside the ``with`` block, and restore the generators."""
    token = _DRAWS.set(draws)
    try:
        yield
    finally:
        _DRAWS.reset(token)
        draws.restore()


def shared_dropout(features: Tensor, probability: float, is_training: bool) -> Tensor:
    """Return features, ``(batch, ...)``, after dropout as a single process with the whole batch would do it."""
    draws = _DRAWS.get()
    if draws is None or not is_training:
        return nn.functional.dropout(features, probability, is_training)
    return draws.dropout(features, probability)
