"""The seam where engines plug in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import Distribution
from pathlib import Path

import pytest
import torch
from torch import Tensor

import stablernn as srn
from stablernn.cells import StableCell, State
from stablernn.engines import base as _select
from stablernn.engines import list_engines, register_engine, select_engine
from stablernn.engines.base import LoopEngine
from stablernn.errors import ConfigError, UnknownNameError


class OnlyRNN(LoopEngine):
    """An engine that knows one cell, to see who is asked."""

    name = "only_rnn"

    def __init__(self) -> None:
        self.runs = 0

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        return cell.key == "rnn"

    def run(
        self,
        cell: StableCell,
        weights: tuple[Tensor, ...],
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> tuple[Tensor | None, State]:
        self.runs += 1
        return super().run(cell, weights, drive, state, valid, dt, substeps, every_output=every_output)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> OnlyRNN:
    # Beside the loop alone, so that the tests hold whatever other engines there are.
    monkeypatch.setattr(_select, "_is_loaded", True)
    monkeypatch.setattr(_select, "_ENGINES", {"loop": _select._ENGINES["loop"]})
    added = OnlyRNN()
    register_engine(added)
    return added


def test_auto_takes_the_newest_engine_that_supports_the_cell(engine: OnlyRNN) -> None:
    srn.StableRNN("rnn", 2, 3, num_layers=2)(torch.zeros(1, 4, 2))
    assert engine.runs == 2
    srn.StableRNN("gru", 2, 3)(torch.zeros(1, 4, 2))
    assert engine.runs == 2


def test_a_named_engine_that_cannot_run_the_cell_is_refused(engine: OnlyRNN) -> None:
    with pytest.raises(ConfigError) as error:
        srn.StableRNN("gru", 2, 3, engine="only_rnn")(torch.zeros(1, 4, 2))
    assert str(error.value) == (
        "The engine 'only_rnn' cannot run the cell 'gru' on cpu in torch.float32; take engine='auto' or 'loop'."
    )


def test_an_unknown_engine_is_refused(engine: OnlyRNN) -> None:
    cell = srn.create_cell("rnn", 1, 1)
    with pytest.raises(UnknownNameError) as error:
        select_engine("lop", cell, torch.zeros(1, 1, 1))
    assert str(error.value) == "Unknown engine 'lop'. Did you mean 'loop'? It is auto or one of loop, only_rnn."


def test_an_engine_is_registered_once(engine: OnlyRNN) -> None:
    assert list_engines() == ["loop", "only_rnn"]
    with pytest.raises(ValueError, match="The engine 'only_rnn' is registered twice."):
        register_engine(engine)


# Engines of other distributions.


@pytest.fixture
def plugin(engine: OnlyRNN, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str], None]:
    """Install a distribution with one engine, as a function of the engine's name and the code of its factory."""

    def install(name: str, factory: str) -> None:
        (tmp_path / "training_plugin.py").write_text(PLUGIN.format(factory=factory), encoding="utf-8")
        metadata = tmp_path / "training_plugin-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: training-plugin\nVersion: 1.2\n", encoding="utf-8"
        )
        entry = f"[stablernn.training_engines]\n{name} = training_plugin:create\n"
        (metadata / "entry_points.txt").write_text(entry, encoding="utf-8")
        # Without what the environment has installed.
        points = Distribution.at(metadata).entry_points
        monkeypatch.setattr(_select, "entry_points", lambda group: points.select(group=group))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(_select, "_is_loaded", False)
        monkeypatch.setattr(_select, "_BROKEN", {})
        monkeypatch.delitem(sys.modules, "training_plugin", raising=False)

    return install


PLUGIN = """
from stablernn.engines.base import LoopEngine

class Quick(LoopEngine):
    name = "quick"

def create():
    {factory}
"""


def test_an_engine_of_another_distribution(plugin: Callable[[str, str], None]) -> None:
    plugin("quick", "return Quick()")
    cell = srn.create_cell("gru", 2, 3)
    assert select_engine("auto", cell, torch.zeros(1, 4, 9)).name == "quick"
    assert select_engine("quick", cell, torch.zeros(1, 4, 9)).name == "quick"
    assert list_engines() == ["loop", "only_rnn", "quick"]


@pytest.mark.parametrize(
    ("name", "factory", "reason"),
    [
        ("quick", "raise RuntimeError('no such processor')", "no such processor"),
        ("quick", "import not_installed_at_all", "No module named 'not_installed_at_all'"),
        ("fast", "return Quick()", "it calls itself 'quick'"),
    ],
)
def test_an_engine_that_cannot_be_loaded(
    plugin: Callable[[str, str], None], name: str, factory: str, reason: str
) -> None:
    plugin(name, factory)
    sentence = f"The engine '{name}' of training-plugin 1.2 could not be loaded: {reason}"
    with pytest.warns(UserWarning, match="could not be loaded") as warned:
        assert list_engines() == ["loop", "only_rnn"]
    assert [str(warning.message) for warning in warned] == [f"{sentence}. It is left out."]
    srn.StableRNN("gru", 2, 3)(torch.zeros(1, 4, 2))
    with pytest.raises(ConfigError) as error:
        srn.StableRNN("gru", 2, 3, engine=name)(torch.zeros(1, 4, 2))
    assert str(error.value) == f"{sentence}. Repair or remove that distribution, or take engine='auto'."
