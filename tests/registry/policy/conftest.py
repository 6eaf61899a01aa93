"""A registry with a policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stablernn_registry import Registry, Version

Publish = Callable[..., Version]


@pytest.fixture
def ruled(registry: Registry, publish: Publish) -> Registry:
    """A version and a policy of two lines."""
    publish()
    registry.set_policy({"kind": "none"}, alias="gated", why="first reason", who="ada")
    registry.set_policy({"kind": "bounded"}, alias="gated", why="second reason", who="ada")
    return registry
