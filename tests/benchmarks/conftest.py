"""The scripts under test can be imported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmark_scripts import scripts_on_path


@pytest.fixture(scope="module", autouse=True)
def benchmarks() -> Iterator[None]:
    with scripts_on_path():
        yield
