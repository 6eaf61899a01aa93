"""Progress and notes on stderr: which stage a command is in, each note once, scores that there are."""

from __future__ import annotations

import logging

import pytest

from stablernn_cli.output import Output
from stablernn_cli.training_progress import library_messages


def test_a_note_on_the_data_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("stablernn.data")
    with library_messages(Output()):
        for missing in (2, 2, 3):
            log.info("Data: %d missing values.", missing)
    assert capsys.readouterr().err == "Data: 2 missing values.\nData: 3 missing values.\n"
