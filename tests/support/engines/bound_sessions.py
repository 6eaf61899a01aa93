"""Sessions on the CPU that are opened and bound as those on a GPU are."""

from __future__ import annotations

from typing import Any

import pytest

from stablernn_runtime.engines import select
from stablernn_runtime.engines.session import BoundSession, Placement


class OpenedAsOnGpu(BoundSession):
    """A bound session whose inputs and outputs are compared with the manifest as those of any other."""

    def __init__(self, session: Any) -> None:
        super().__init__(session, Placement("cpu"))
        self.get_inputs, self.get_outputs = session.get_inputs, session.get_outputs


def bind_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bind every session that ONNX Runtime opens for a version from now on."""
    open_session = select.open_session
    monkeypatch.setattr(
        select, "open_session", lambda *arguments, **options: OpenedAsOnGpu(open_session(*arguments, **options))
    )
