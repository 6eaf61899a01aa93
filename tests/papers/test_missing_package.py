"""What is said where ``stablernn-papers`` is not installed."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from stablernn.data import list_datasets, load_data
from stablernn.errors import UnknownNameError
from stablernn.extensions import DATASET_GROUP, PAPERS_DATASETS
from stablernn_cli.main import run


def test_the_command_and_the_datasets_name_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stablernn_cli.commands._entry_points", lambda: {})
    monkeypatch.setattr("stablernn.data.catalog.dataset_entry_points", lambda: {})
    assert run(["reproduce", "list"]) == 2
    assert "'stablernn-papers', which is not installed" in capsys.readouterr().err
    assert run(["--help"]) == 0
    assert "reproduce" not in capsys.readouterr().out
    with pytest.raises(UnknownNameError, match="'timit' is in the package 'stablernn-papers'"):
        load_data("timit")
    assert not PAPERS_DATASETS & {info.key for info in list_datasets()}


def test_the_list_of_datasets_for_errors_is_that_of_the_package() -> None:
    points = entry_points(group=DATASET_GROUP)
    assert {point.name for point in points if point.module.startswith("stablernn_papers.")} == PAPERS_DATASETS
