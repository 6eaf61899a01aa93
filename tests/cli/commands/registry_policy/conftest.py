"""Two versions, one of them contracting, and a policy that guards an alias."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_helpers import ALIKE, Workplace, copied
from policy_helpers import require


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """Both versions; not to be changed."""
    workplace = Workplace(tmp_path_factory.mktemp("policy"))
    for cell in ("lru", "rnn"):
        workplace.ok(f"-q train --cell {cell} {ALIKE} --run-dir {cell}-run")
        workplace.ok(f"-q export {cell}-run --name digits")
    return workplace


@pytest.fixture
def workplace(made: Workplace, tmp_path: Path) -> Iterator[Workplace]:
    """A copy to change."""
    with copied(made, tmp_path / "copy") as copy:
        yield copy


@pytest.fixture
def guarded(workplace: Workplace) -> Workplace:
    """``production`` leads to the stable version and must be contracting."""
    workplace.ok("-q registry alias digits@production 1")
    require(workplace, "--alias production --require contracting")
    return workplace
