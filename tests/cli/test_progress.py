"""Progress and notes on stderr: which stage a command is in, each note once, scores that there are."""

from __future__ import annotations

import logging

import pytest

from cli_helpers import NO_PLOTS, Workplace
from stablernn_cli.output import Output
from stablernn_cli.training_progress import library_messages

TINY = ("--data", "digits", "--cell", "rnn", "--hidden-size", 4, "--max-steps", 2, *NO_PLOTS)


def test_a_note_on_the_data_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("stablernn.data")
    with library_messages(Output()):
        for missing in (2, 2, 3):
            log.info("Data: %d missing values.", missing)
    assert capsys.readouterr().err == "Data: 2 missing values.\nData: 3 missing values.\n"


def test_epochs_without_validation_have_the_training_loss(empty: Workplace) -> None:
    result = empty.ok("train", *TINY, "--set", "training.refit=true", "--run-dir", "run")
    (line,) = [line for line in result.err.splitlines() if line.startswith("epoch 1/1")]
    assert line.startswith("epoch 1/1  loss 2.")
    assert "validation" not in line
    assert "-" not in line
