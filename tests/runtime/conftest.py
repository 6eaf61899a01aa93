"""Models of every kind that engines must agree about."""

from __future__ import annotations

import pytest

from engine_helpers import KINDS, SLOW_KINDS, publish
from published_models import Published


@pytest.fixture(scope="session")
def zoo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A version of each, of the slow ones where slow tests run; no test changes them."""
    has_slow = any(item.get_closest_marker("slow") for item in request.session.items)
    kinds = [kind for kind in KINDS if has_slow or kind not in SLOW_KINDS]
    return publish(tmp_path_factory.mktemp("zoo"), tmp_path_factory.mktemp("exports"), kinds)
