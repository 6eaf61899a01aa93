"""Shards of streams."""

from __future__ import annotations

import pytest

from published_models import Published
from stablernn_runtime.scoring import Scorer, StreamShard
from stream_helpers import publish


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A version of every kind that streams."""
    return publish(tmp_path_factory.mktemp("registry"), tmp_path_factory.mktemp("exports"))


@pytest.fixture
def animals(published: Published) -> Scorer:
    return Scorer.find("animals:1", registry=published.registry.root)


@pytest.fixture
def shard(animals: Scorer) -> StreamShard:
    return StreamShard(animals, lateness=4)
