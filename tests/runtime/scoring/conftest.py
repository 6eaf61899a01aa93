"""Shards of streams."""

from __future__ import annotations

import pytest

from published_models import Published
from stablernn_runtime.scoring import Scorer, StreamShard
from stream_helpers import publish


@pytest.fixture(scope="session")
def kinds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A version of every kind that streams where slow tests run, else of three."""
    has_slow = any(item.get_closest_marker("slow") for item in request.session.items)
    names = () if has_slow else ("classes", "timed", "patched")
    return publish(tmp_path_factory.mktemp("registry"), tmp_path_factory.mktemp("exports"), names)


@pytest.fixture
def animals(published: Published) -> Scorer:
    return Scorer.find("animals:1", registry=published.registry.root)


@pytest.fixture
def shard(animals: Scorer) -> StreamShard:
    return StreamShard(animals, lateness=4)
