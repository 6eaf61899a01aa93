from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from stablernn.errors import ConfigError
from stablernn.training.settings.load import load_config

NEEDED = ["data.source=digits", "model.cell=lipschitz"]


def error_of(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[*NEEDED, *overrides])
    return str(caught.value)


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_later_layers_win(tmp_path: Path) -> None:
    path = written(tmp_path, "data: {source: digits}\nmodel: {cell: rnn, hidden_size: 3}\ntraining: {lr: 1, seed: 1}\n")
    config = load_config(
        path,
        ["training.lr=4"],
        {"training": {"lr": 0, "batch_size": 5, "seed": 0}},
        options={"training.lr": 3, "training.seed": 2, "model.hidden_size": None},
    )
    assert (config.training.lr, config.training.seed, config.training.batch_size) == (4, 2, 5)
    assert config.model.hidden_size == 3


def test_the_tree_reads_back_as_the_same_settings(tmp_path: Path) -> None:
    config = load_config(
        overrides=[*NEEDED, "model.cell_options.step_size=0.1", "task.quantiles=[0.25, 0.75]", "data.target=[a, b]"]
    )
    assert load_config(written(tmp_path, yaml.safe_dump(config.tree()))) == config


def test_lists_take_values_between_commas() -> None:
    overrides = ["data.calendar=day,week", "task.quantiles=.1,5e-1", "data.missing=-9999,-", "data.sheet=a,b"]
    config = load_config(overrides=[*NEEDED, *overrides, "data.categories=kind, place", 'data.channels=["a,b"]'])
    assert config.data.calendar == ("day", "week")
    assert config.task.quantiles == (0.1, 0.5)
    assert config.data.missing == (-9999, "-")
    assert config.data.categories == {"kind": (), "place": ()}
    # Names with a comma, and settings that are no lists.
    assert (config.data.channels, config.data.sheet) == (("a,b",), "a,b")


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [("epochs", "max_steps", "max_steps"), ("max_steps", "epochs", "epochs")],
    ids=["steps over epochs", "epochs over steps"],
)
def test_a_length_in_a_later_layer_replaces_the_other_kind(first: str, second: str, kept: str) -> None:
    config = load_config(None, [*NEEDED, f"training.{second}=7"], {"training": {first: 3}})
    assert {key: getattr(config.training, key) for key in (first, second)} == {kept: 7, first: None}


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("training.epoch=3", "'training.epochs'"),
        ("training.hidden_size=3", "'model.hidden_size'"),
        ("batch_size=3", "'training.batch_size'"),
        ("trainig.epochs=3", "'training'"),
    ],
)
def test_unknown_key(override: str, near: str) -> None:
    assert f"Did you mean {near}?" in error_of(override)


WRONG = {
    "training.schedule=cosin": "Did you mean 'cosine'?",
    "training.epochs=0": "greater than or equal to 1, got 0",
    "training.epochs=1.5": "valid integer, got 1.5",
    "training.seed=4294967296": "less than or equal to 4294967295",
    "model.dropout=0.3": "with 1 layer",
    "training.lr=.inf": "finite number, got inf",
    "training.crop=1.1": "less than or equal to 1, got 1.1",
    "training.optimizer=adam training.momentum=0.9": "training.momentum is only used by the optimizers",
    "training.schedule=cosine training.step_epochs=3": "training.step_epochs is only used by the schedule 'step'",
    "task.quantiles=[0.9,0.1]": "ascending levels between 0 and 1",
    "task.quantiles=many": "must be a list",
    "data.target=[1]": "data.target.0 must be a valid string",
    "model.mask_channel=maybe": "True, False or 'auto'",
    "model.window=5 model.scaling=standard": "model.window is only used by the scalings",
    "training=5": "must be a section with keys",
    "training.lr": "training.lr=0.01, got 'training.lr'",
    "training.lr=[1,": "'training.lr' is not valid YAML",
}


@pytest.mark.parametrize("override", WRONG)
def test_wrong_value(override: str) -> None:
    assert WRONG[override] in error_of(*override.split(" "))


def test_epochs_and_steps_exclude_each_other(tmp_path: Path) -> None:
    path = written(tmp_path, "data: {source: a}\nmodel: {cell: rnn}\ntraining: {epochs: 3, max_steps: 9}\n")
    with pytest.raises(
        ConfigError, match=r"^training\.epochs and training\.max_steps exclude each other, got 3 and 9\."
    ):
        load_config(path)


BAD_FILES = {
    "data: {source: a\n": "line 2, column 1",
    "training:\n  lr: 1\n  lr: 2\n": "the key 'lr' is given twice",
    "data: " + "[" * 2_000: "nested too deeply",
    "just words\n": "must hold the sections",
    "data: !!python/object/apply:os.getcwd []\n": "could not determine a constructor",
}


@pytest.mark.parametrize("text", BAD_FILES, ids=BAD_FILES.values())
def test_bad_file(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=f"'{path}' .*{BAD_FILES[text]}"):
        load_config(path)
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.yaml")
