from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from cli_helpers import HORIZON, Workplace, copied, write_load
from exports import share_graphs, shared


@pytest.fixture(autouse=True, scope="module")
def _shared_graphs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share_graphs(patch)
        yield


@pytest.fixture
def empty(tmp_path: Path) -> Workplace:
    """Nothing there yet."""
    return Workplace(tmp_path)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """Runs ``digits`` and ``load``, both published under these names; not to be changed, and made once for all workers.

    ``load`` forecasts two of the three channels of ``load.csv``.
    """
    folder, done = shared("trained"), shared("trained.done")
    with FileLock(shared("trained.lock")):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                # The graphs of the module that asks first may not be shared yet.
                share_graphs(patch)
                _train(Workplace(folder))
            done.touch()
    # A copy, for there are tests that write their answers into it.
    return Workplace(shutil.copytree(folder, tmp_path_factory.mktemp("trained") / "copy"))


def _train(workplace: Workplace) -> None:
    write_load(workplace.path("load.csv"))
    small = "--hidden-size 8 --epochs 2"
    workplace.ok(f"-q train --data digits --cell lipschitz {small} --run-dir digits-run")
    forecast = f"--horizon {HORIZON} --context-length 12 --target heat --target power"
    workplace.ok(f"-q train --data load.csv --cell gru {small} {forecast} --run-dir load-run")
    workplace.ok("-q export digits-run --name digits")
    workplace.ok("-q export load-run --name load")


@pytest.fixture
def workplace(trained: Workplace, tmp_path: Path) -> Iterator[Workplace]:
    """A copy of ``trained`` to change."""
    with copied(trained, tmp_path / "copy") as copy:
        yield copy
