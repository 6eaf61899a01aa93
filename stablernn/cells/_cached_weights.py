"""A cache of the matrices that cells build from their parameters, for calls between which no parameter changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightCache:
    """The matrices of one cell, for steps with and without ``dt``.

    Attributes:
        is_enabled: True while matrices are cached.
    """

    def __init__(self) -> None:
        self.is_enabled = False
        self._weights: dict[bool, tuple[Tensor, ...]] = {}

    def enable(self, weights: Mapping[bool, tuple[Tensor, ...]] | None = None) -> None:
        """Cache from now on; the parameters must not change until :meth:`disable` is called.

        Args:
            weights: Initial content, by whether steps take ``dt``; empty by default.
        """
        self.is_enabled = True
        self._weights = dict(weights or {})

    def disable(self) -> None:
        """Drop the content and cache nothing more."""
        self.is_enabled = False
        self._weights = {}

    def get(self, timed: bool, build: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return the matrices, built on the first call.

        Args:
            timed: True for steps that take ``dt``.
            build: Function that builds them.
        """
        if not self.is_enabled:
            return build()
        # Some cells build other matrices for steps with dt: one entry for each kind of step.
        if timed not in self._weights:
            self._weights[timed] = build()
        return self._weights[timed]


@contextmanager
def cached_weights(module: nn.Module) -> Iterator[None]:
    """Disable gradients, and build the matrices of a module's cells once for all calls in the block.

    The parameters must not change within the block.
    """
    # By attribute, not by class: importing StableCell here would be an import cycle.
    caches = [getattr(submodule, "weight_cache", None) for submodule in module.modules()]
    weight_caches = [cache for cache in caches if isinstance(cache, WeightCache)]
    for cache in weight_caches:
        cache.enable()
    try:
        with torch.no_grad():
            yield
    finally:
        for cache in weight_caches:
            cache.disable()
