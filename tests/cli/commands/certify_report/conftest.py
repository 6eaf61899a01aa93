"""A registry with released versions, and the certificate document of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from certificate_page import Page, read_document
from cli_helpers import UNPLOTTED, Workplace, copied


@pytest.fixture(scope="package")
def released(trained: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """``sure:1``, a contracting model with a ball, promoted under a policy, with a stability report."""
    with copied(trained, tmp_path_factory.mktemp("released") / "copy") as copy:
        small = f"--hidden-size 8 --max-steps 20 {UNPLOTTED}"
        copy.ok(f"-q train --data digits --cell lipschitz --certified {small} --run-dir sure-run")
        copy.ok("-q export sure-run --name sure")
        copy.ok("-q registry policy set --require none --alias production --why 'rule 12'")
        copy.ok("-q registry alias sure@production 1 --why 'release of May'")
        copy.ok("-q eval sure:1 --stability")
        yield copy


@pytest.fixture(scope="package")
def documents(released: Workplace) -> tuple[Page, dict[str, Any]]:
    return read_document(released, "sure@production")
