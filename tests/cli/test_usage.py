"""What is wrong in the command line itself: one sentence, exit code 2, nothing written."""

from __future__ import annotations

import pytest

from cli_helpers import Workplace

ROWS = {
    "command of another tool": (
        "registry promote digits 1",
        "Unknown command 'promote'. An alias is moved by: stablernn registry alias NAME@ALIAS VERSION. See 'stablernn "
        "registry --help'.",
    ),
    "command that there is not": (
        "registry delete digits:1",
        "Unknown command 'delete'. Nothing removes a version or an alias; an alias is moved by: stablernn registry "
        "alias NAME@ALIAS VERSION. See 'stablernn registry --help'.",
    ),
    "unknown command": ("trian", "Unknown command 'trian'. Did you mean 'train'? See 'stablernn --help'."),
    "unknown subcommand": (
        "registry lst",
        "Unknown command 'lst'. Did you mean 'list'? See 'stablernn registry --help'.",
    ),
    "unknown option": (
        "train --epoch 3",
        "Unknown option '--epoch'. Did you mean '--epochs'? See 'stablernn train --help'.",
    ),
    "unknown option with several similar ones": (
        "train --hiden-size 3",
        "Unknown option '--hiden-size'. Did you mean '--hidden-size'? See 'stablernn train --help'.",
    ),
    "option of another command": (
        "compare --hidden-size 3",
        "Unknown option '--hidden-size'. This command takes it as --set model.hidden_size=VALUE. See "
        "'stablernn compare --help'.",
    ),
    "setting without an option": (
        "train --channels a",
        "Unknown option '--channels'. This command takes it as --set data.channels=VALUE. See 'stablernn train "
        "--help'.",
    ),
    "option of another command, without settings": (
        "serve --hidden-size 3",
        "Unknown option '--hidden-size'. See 'stablernn serve --help'.",
    ),
    "global option behind": (
        "train -q",
        "'-q' goes before the command: stablernn -q ... See 'stablernn train --help'.",
    ),
    "no number": ("train --lr fast", "--lr must be a number, got 'fast'. See 'stablernn train --help'."),
    "no whole number": (
        "train --epochs=1.5",
        "--epochs must be a whole number, got '1.5'. See 'stablernn train --help'.",
    ),
    "no choice": (
        "train --device gpu",
        "--device must be one of 'auto', 'cpu', 'cuda', got 'gpu'. See 'stablernn train --help'.",
    ),
    "missing argument": ("eval", "Missing argument 'TARGET'. See 'stablernn eval --help'."),
    "missing option": ("export run", "Missing option '--name'. See 'stablernn export --help'."),
    "one argument too many": (
        "doctor now",
        "Got unexpected extra argument(s) (now). See 'stablernn doctor --help'.",
    ),
    "no data": ("train --cell gru", "Missing option '--data'. See `stablernn data list` for the choices."),
    "a budget of nothing": (
        "train --data digits --budget 0s",
        "A budget is a time or a number of optimizer steps above 0, such as 90s, 2m, 1h or 20000steps, got '0s'.",
    ),
    "a budget for nothing": (
        "train --data digits --cell lru --budget 1m",
        "A budget is for choosing a cell, and 'lru' is given. Leave one of them out.",
    ),
    "resume what": (
        "train --resume",
        "--resume needs the directory of the run, got no --run-dir. Add --run-dir DIR.",
    ),
    "resume nothing": (
        "train --resume --run-dir gone",
        "There is no run to resume in 'gone'. Start it without --resume.",
    ),
    "two lengths": (
        "train --data digits --cell gru --epochs 3 --max-steps 2",
        "--epochs and --max-steps exclude each other, got 3 and 2. Give only one of them.",
    ),
    "both flags": (
        "train --data digits --cell gru --certified --free",
        "--certified and --free exclude each other, got both. Give only one of them.",
    ),
    "both flags, the other way round": (
        "train --data digits --cell gru --free --certified",
        "--certified and --free exclude each other, got both. Give only one of them.",
    ),
    "flag against --set": (
        "train --data digits --cell gru --free --set training.certified=true",
        "--free contradicts --set training.certified=True. Give only one of them.",
    ),
    "two values": (
        "train --data digits --cell gru --lr 0.1 --set training.lr=0.2",
        "--lr 0.1 contradicts --set training.lr=0.2. Give only one of them.",
    ),
    "length against --set": (
        "train --data digits --cell gru --epochs 3 --set training.max_steps=2",
        "--epochs 3 contradicts --set training.max_steps=2. Give only one of them.",
    ),
    "section against option": (
        "train --data digits --cell gru --set 'model={cell: lstm}'",
        "--cell gru contradicts --set model.cell=lstm. Give only one of them.",
    ),
    "value out of range": (
        "train --data digits --cell gru --lr -1",
        "--lr must be greater than 0, got -1.0.",
    ),
    "unknown cell": (
        "train --data digits --cell antisymetric",
        "Unknown cell 'antisymetric'. Did you mean 'antisymmetric'? See `stablernn cells list`.",
    ),
    "unknown cell shown": (
        "cells show grru",
        "Unknown cell 'grru'. Did you mean 'gru'? See `stablernn cells list`.",
    ),
    "unknown dataset": (
        "train --data digist --cell gru",
        "Unknown dataset or file 'digist'. Did you mean 'digits'? See 'stablernn data list'.",
    ),
    "unknown file": (
        "train --data gone.csv --cell gru",
        "No file 'gone.csv'. Check the path.",
    ),
    "unknown column": (
        "train --data co2 --cell gru --target co3",
        "Unknown target 'co3'. Did you mean 'co2'? 'co2.csv.gz' has co2.",
    ),
    "wrong task": (
        "train --data digits --cell gru --task forecast",
        "'digits' is read for task 'classify', got task 'forecast'.",
    ),
    "no configuration file": (
        "train --config gone.yaml",
        "Cannot read the configuration file 'gone.yaml': No such file or directory.",
    ),
    "unknown target": (
        "eval gone",
        "There is no run directory 'gone', and in the registry: Unknown model 'gone': the registry {registry} is "
        "empty. Publish a model, or point STABLERNN_REGISTRY to the registry that has it.",
    ),
    "no target": (
        "predict ./runs/gone --input x.npz",
        "There is no run directory './runs/gone'. Give one that 'stablernn train' wrote, or a version of the registry "
        "such as NAME@ALIAS.",
    ),
    "no target by an alias": (
        "eval load@production",
        "'load@production' is not in the registry {registry}. Unknown model 'load': the registry {registry} is empty. "
        "Publish a model, or point STABLERNN_REGISTRY to the registry that has it.",
    ),
    "no target with capitals": (
        "eval Load",
        "'Load' is neither a run directory nor a reference. A model name is 1 to 64 of the characters a-z 0-9 . _ -, "
        "the first a letter or a digit, got 'Load'.",
    ),
    "no run": (
        "export gone --name x",
        "There is no run in 'gone'. Name the directory that `stablernn train` printed.",
    ),
    "bad name": (
        "export gone --name X",
        "A model name is 1 to 64 of the characters a-z 0-9 . _ -, the first a letter or a digit, got 'X'.",
    ),
    "bad name for the quickstart": (
        "quickstart --name Digits",
        "A model name is 1 to 64 of the characters a-z 0-9 . _ -, the first a letter or a digit, got 'Digits'.",
    ),
    "reference for a name": (
        "export gone --name x:1",
        "--name takes a plain name, got 'x:1'. The registry numbers versions itself; set an alias with --alias.",
    ),
    "reserved alias": (
        "export gone --name x --alias latest",
        "'latest' is reserved and cannot be an alias. Write 'x' for the highest version, or choose a word.",
    ),
    "no alias": (
        "registry alias x 1",
        "An alias is written NAME@ALIAS, got 'x'. For example: 'x@production'.",
    ),
    "an alias as a word of its own": (
        "registry alias load prod",
        "'stablernn registry alias' takes NAME@ALIAS and the number of a version, got 'load prod'. For example: "
        "'stablernn registry alias load@prod 1'.",
    ),
    "an alias behind a version": (
        "registry alias load:3 prod",
        "'stablernn registry alias' takes NAME@ALIAS and the number of a version, got 'load:3 prod'. For example: "
        "'stablernn registry alias load@prod 3'.",
    ),
    "an alias to no number": (
        "registry alias load@prod two",
        "'stablernn registry alias' takes NAME@ALIAS and the number of a version, got 'load@prod two'. For "
        "example: 'stablernn registry alias load@prod 1'.",
    ),
    "an alias without a version": (
        "registry alias load@prod",
        "'stablernn registry alias' takes NAME@ALIAS and the number of a version, got 'load@prod' without a version. "
        "For example: 'stablernn registry alias load@prod 1'.",
    ),
    "force without a reason": (
        "registry alias x@p 1 --force",
        "--force needs a reason, got none. Add --why '...'.",
    ),
    "serve what is not there": (
        "serve --model gone --port 0",
        "Unknown model 'gone': the registry {registry} is empty. Publish a model, or point STABLERNN_REGISTRY to the "
        "registry that has it.",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_wrong_command_line(row: str, empty: Workplace) -> None:
    arguments, sentence = ROWS[row]
    result = empty(arguments)
    assert result.sentence == sentence.format(registry=empty.registry)
    assert result.code == 2
    assert result.out == ""
    assert list(empty.folder.iterdir()) == []


def test_a_key_that_does_not_exist(empty: Workplace) -> None:
    empty.path("c.yaml").write_text("training:\n  learning_rate: 0.1\n")
    for arguments in (["--config", "c.yaml"], ["--set", "training.learning_rate=0.1"]):
        assert empty.refusal("train --data digits --cell gru", *arguments).startswith(
            "Unknown key 'training.learning_rate'. 'training' has method, epochs, max_steps, "
        )
    assert [path.name for path in empty.folder.iterdir()] == ["c.yaml"]


def test_debug_shows_the_traceback_and_the_same_sentence(empty: Workplace) -> None:
    result = empty("--debug cells show grru")
    assert "Traceback (most recent call last)" in result.err
    assert result.err.endswith("Error: Unknown cell 'grru'. Did you mean 'gru'? See `stablernn cells list`.\n")
    assert result.code == 2


@pytest.mark.parametrize(("option", "value"), [("step_size", -1), ("skew_weight", 2)])
def test_an_option_of_a_cell_out_of_its_range(empty: Workplace, option: str, value: int) -> None:
    sentence = empty.refusal(f"train --data digits --cell lipschitz --set model.cell_options.{option}={value}")
    assert sentence.startswith(f"{option} must be ")
    assert sentence.endswith(f" for LipschitzRNNCell, got {value}.")
    assert list(empty.folder.iterdir()) == []
