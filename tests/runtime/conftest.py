"""Models of every kind that engines must agree about."""

from __future__ import annotations

import pytest

from engine_helpers import KINDS, publish
from published_models import Published


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A version of each; no test changes them."""
    return publish(tmp_path_factory.mktemp("zoo"), tmp_path_factory.mktemp("exports"), list(KINDS))
