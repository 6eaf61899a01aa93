"""Progress and notes on stderr: which stage a command is in, each note once, scores that there are."""

from __future__ import annotations

import io
import logging

import pytest

from cli_helpers import UNPLOTTED, Workplace
from stablernn_cli.commands.train import library_messages
from stablernn_cli.output import Output

TINY = f"--data digits --cell rnn --hidden-size 4 --max-steps 2 {UNPLOTTED}"
BOUNDS = [
    f"Bounding the error of weights in {form}, norm {norm} of 3 ..."
    for form in ("float16", "int8")
    for norm in (1, 2, 3)
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_note_on_the_data_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("stablernn.data")
    with library_messages(Output()):
        for missing in (2, 2, 3):
            log.info("Data: %d missing values.", missing)
    assert capsys.readouterr().err == "Data: 2 missing values.\nData: 3 missing values.\n"


def test_epochs_without_validation_have_the_training_loss(empty: Workplace) -> None:
    result = empty.ok(f"train {TINY} --set training.refit=true --run-dir run")
    (line,) = [line for line in result.err.splitlines() if line.startswith("epoch 1/1")]
    assert line.startswith("epoch 1/1  loss 2.")
    assert "validation" not in line
    assert "-" not in line


def test_train_and_export_say_what_they_do(empty: Workplace) -> None:
    trained = empty.ok(f"train {TINY} --run-dir run").err.splitlines()
    stages = [line for line in trained if line.endswith(" ...")]
    assert stages == [
        "Loading ...",
        "Reading digits ...",
        "Training rnn ...",
        "Scoring the best weights ...",
        "Computing what is proved ...",
    ]
    exported = empty.ok("export run --name digits").err.splitlines()
    assert [line for line in exported if line.endswith(" ...")] == [
        "Exporting run and comparing the graphs with torch ...",
        "Writing the graphs ...",
        "Comparing the graphs with torch, over up to 64 steps ...",
        "Proving what holds for inputs of any size ...",
        *BOUNDS,
    ]
    # A terminal that cannot draw a spinner gets the lines of a pipe.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "dumb")
        terminal = Terminal()
        assert empty("certify run", stderr=terminal).code == 0
    assert terminal.getvalue().splitlines() == [
        "Certifying run ...",
        "Proving what holds for inputs of any size ...",
        *BOUNDS,
    ]


@pytest.mark.slow
def test_certify_says_which_layer_and_which_part_of_the_document_is_next(empty: Workplace) -> None:
    layers = "--cell lstm --num-layers 2 --set model.members=2"
    empty.ok(f"train {TINY} {layers} --run-dir run")
    lines = empty.ok("certify run --report certificate.html").err.splitlines()
    for scope in ("of any size", "within a range"):
        counts = [
            line.partition(": layer ")[2] for line in lines if line.startswith(f"Proving what holds for inputs {scope}")
        ]
        assert counts == [f"{number} of 4 ..." for number in (1, 2, 3, 4)]
    assert lines[-4:] == [
        "Writing certificate.html ...",
        "Drawing trajectories ...",
        "Drawing the figures ...",
        "Wrote certificate.html.",
    ]
