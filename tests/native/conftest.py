from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from native_exports import MODELS, as_trained, write_version


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the files of one of the models."""
    root, folders = tmp_path_factory.mktemp("versions"), {}

    def get(name: str) -> Path:
        if name not in folders:
            folders[name] = write_version(as_trained(MODELS[name]()), root / str(len(folders)))
        return folders[name]

    return get
