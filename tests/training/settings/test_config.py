from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from stablernn.errors import ConfigError
from stablernn.training.settings.config import Config, TrainingConfig
from stablernn.training.settings.load import load_config, validate

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


def test_settings_cannot_be_changed() -> None:
    config = load_config(overrides=NEEDED)
    with pytest.raises(ValidationError):
        config.training.lr = 1.0


def test_every_setting_says_what_it_is() -> None:
    for section in Config.model_fields:
        fields = Config.model_json_schema()["$defs"]
        assert fields
        for key, schema in fields[f"{section.title()}Config"]["properties"].items():
            assert schema.get("description"), f"{section}.{key}"


def test_values_are_yaml() -> None:
    config = load_config(
        overrides=[
            *NEEDED,
            "training.lr=1e-3",
            "model.mask_channel=true",
            "data.target=temperature",
            "training.clip_norm=null",
            "model.cell_options={step_size: 5e-2}",
        ]
    )
    assert config.training.lr == 0.001
    assert config.model.mask_channel is True
    assert config.data.target == ("temperature",)
    assert config.training.clip_norm is None
    assert config.model.cell_options == {"step_size": 0.05}


def test_lists_take_values_between_commas() -> None:
    overrides = ["data.calendar=day,week", "task.quantiles=.1,5e-1", "data.missing=-9999,-", "data.sheet=a,b"]
    config = load_config(overrides=[*NEEDED, *overrides, "data.categories=kind, place", 'data.channels=["a,b"]'])
    assert config.data.calendar == ("day", "week")
    assert config.task.quantiles == (0.1, 0.5)
    assert config.data.missing == (-9999, "-")
    assert config.data.categories == {"kind": (), "place": ()}
    # Names with a comma, and settings that are no lists.
    assert (config.data.channels, config.data.sheet) == (("a,b",), "a,b")


@pytest.mark.parametrize("word", ["No", "no", "yes", "on", "OFF", "y"])
def test_words_that_were_booleans_once_are_words(word: str, tmp_path: Path) -> None:
    assert load_config(overrides=[*NEEDED, f"data.time_column={word}"]).data.time_column == word
    path = written(tmp_path, f"data: {{source: digits, target: [{word}]}}\nmodel: {{cell: rnn}}\n")
    assert load_config(path).data.target == (word,)


@pytest.mark.parametrize(("word", "value"), [("true", True), ("False", False)])
def test_booleans(word: str, value: bool) -> None:
    assert load_config(overrides=[*NEEDED, f"model.mask_channel={word}"]).model.mask_channel is value


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [("epochs", "max_steps", "max_steps"), ("max_steps", "epochs", "epochs")],
    ids=["steps over epochs", "epochs over steps"],
)
def test_a_length_in_a_later_layer_replaces_the_other_kind(first: str, second: str, kept: str) -> None:
    config = load_config(None, [*NEEDED, f"training.{second}=7"], {"training": {first: 3}})
    assert {key: getattr(config.training, key) for key in (first, second)} == {kept: 7, first: None}


# All keys in their order, however many there are.
TRAINING_KEYS = ", ".join(TrainingConfig.model_fields)
TRAINING = f"'training' has {TRAINING_KEYS}."
UNKNOWN = {
    "typing mistake": (
        "training.epoch=3",
        f"Unknown key 'training.epoch'. Did you mean 'training.epochs'? {TRAINING}",
    ),
    "wrong section": (
        "training.hidden_size=3",
        f"Unknown key 'training.hidden_size'. Did you mean 'model.hidden_size'? {TRAINING}",
    ),
    "no section": (
        "batch_size=3",
        "Unknown key 'batch_size'. Did you mean 'training.batch_size'? Sections are data, task, model, training.",
    ),
    "unknown section": (
        "trainig.epochs=3",
        "Unknown key 'trainig'. Did you mean 'training'? Sections are data, task, model, training.",
    ),
    "nothing near": (
        "task.zzz=3",
        "Unknown key 'task.zzz'. 'task' has name, horizon, context_length, season, quantiles.",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_key(case: str) -> None:
    override, sentence = UNKNOWN[case]
    assert error_of(override) == sentence


WRONG = {
    "training.schedule=cosin": (
        "training.schedule must be 'constant', 'cosine', 'one-cycle', 'step' or 'plateau', got 'cosin'. Did you mean "
        "'cosine'?"
    ),
    "training.epochs=0": "training.epochs must be greater than or equal to 1, got 0.",
    "training.epochs=ten": "training.epochs must be a valid integer, got 'ten'.",
    "training.epochs=1.5": "training.epochs must be a valid integer, got 1.5.",
    "training.seed=4294967296": "training.seed must be less than or equal to 4294967295, got 4294967296.",
    "data.seed=4294967296": "data.seed must be less than or equal to 4294967295, got 4294967296.",
    "model.dropout=0.3": (
        "model.dropout acts between layers and needs model.num_layers of 2 or more, got model.dropout=0.3 with 1 layer."
    ),
    "training.seed=true": "training.seed must be a valid integer, got True.",
    "training.lr=0": "training.lr must be greater than 0, got 0.",
    "training.lr=.inf": "training.lr must be a finite number, got inf.",
    "training.clip_norm=-1": "training.clip_norm must be greater than or equal to 0, got -1.",
    "training.crop=0": "training.crop must be greater than 0, got 0.",
    "training.crop=1.1": "training.crop must be less than or equal to 1, got 1.1.",
    "training.channel_dropout=1": "training.channel_dropout must be less than 1, got 1.",
    "training.magnitude_warp=-0.1": "training.magnitude_warp must be greater than or equal to 0, got -0.1.",
    "training.mixup=-0.2": "training.mixup must be greater than or equal to 0, got -0.2.",
    "training.device=tpu": "training.device must be 'auto', 'cpu' or 'cuda', got 'tpu'. Did you mean 'cpu'?",
    "task.name=predict": "task.name must be 'classify', 'forecast' or 'predict-next', got 'predict'. Did you mean "
    "'predict-next'?",
    "task.quantiles=[0.9, 0.1]": "task.quantiles must be ascending levels between 0 and 1, got [0.9, 0.1].",
    "task.quantiles=[0.5, 1.0]": "task.quantiles must be ascending levels between 0 and 1, got [0.5, 1.0].",
    "task.quantiles=many": "task.quantiles must be a list, got 'many'.",
    "data.source=2024": "data.source must be a valid string, got 2024.",
    "data.target=[1]": "data.target.0 must be a valid string, got 1.",
    "data.validation_fraction=1": "data.validation_fraction must be less than 1, got 1.",
    "model.mask_channel=maybe": "model.mask_channel must be True, False or 'auto', got 'maybe'.",
    "model={cell: rnn, window: 5, scaling: standard}": (
        "model.window is only used by the scalings 'window' and 'context', got model.scaling='standard'."
    ),
    "model.cell=null": "model.cell must be a valid string, got None.",
    "training=5": f"training must be a section with keys ({TRAINING_KEYS}), got 5.",
}


@pytest.mark.parametrize("override", WRONG)
def test_wrong_value(override: str) -> None:
    assert error_of(override) == WRONG[override]


def test_epochs_and_steps_exclude_each_other(tmp_path: Path) -> None:
    path = written(tmp_path, "data: {source: a}\nmodel: {cell: rnn}\ntraining: {epochs: 3, max_steps: 9}\n")
    with pytest.raises(
        ConfigError, match=r"^training\.epochs and training\.max_steps exclude each other, got 3 and 9\."
    ):
        load_config(path)


def test_momentum_is_not_for_adam() -> None:
    assert error_of("training.optimizer=adam", "training.momentum=0.9") == (
        "training.momentum is only used by the optimizers 'sgd' and 'rmsprop', got training.optimizer='adam'."
    )


def test_steps_of_the_rate_are_not_for_other_schedules() -> None:
    assert error_of("training.schedule=cosine", "training.step_epochs=3") == (
        "training.step_epochs is only used by the schedule 'step', got training.schedule='cosine'."
    )


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        (
            {"model": {"cell": "rnn"}},
            "data is missing: the settings need this section, with keys source, test, target, ",
        ),
        ({"data": None, "model": {"cell": "rnn"}}, "data.source is missing: Name of a dataset or path of a file."),
    ],
    ids=["section", "empty section"],
)
def test_missing(tree: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(tree)
    assert str(caught.value).startswith(sentence)


def test_an_unknown_key_is_named_before_the_one_that_it_leaves_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        validate({"data": {"sorce": "digits"}, "model": {"cell": "rnn"}})
    assert str(caught.value).startswith("Unknown")
    assert "data.sorce" in str(caught.value)
    assert "source" in str(caught.value)


def test_override_without_equals_sign() -> None:
    assert error_of("training.lr") == "An override must look like training.lr=0.01, got 'training.lr'."


def test_override_that_is_not_yaml() -> None:
    assert error_of("training.lr=[1,") == (
        "The value of 'training.lr' is not valid YAML: line 1, column 4: expected the node content, "
        "but found '<stream end>'."
    )


def test_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"Cannot read the configuration file '{path}': No such file or directory."


BAD_FILES = {
    "syntax": (
        "data: {source: a\n",
        "' is not valid YAML: line 2, column 1: expected ',' or '}', but got '<stream end>'.",
    ),
    "key twice": (
        "training:\n  lr: 1\n  lr: 2\n",
        "' is not valid YAML: line 2, column 3: the key 'lr' is given twice.",
    ),
    "nested": ("data: " + "[" * 10_000, "' is not valid YAML: it is nested too deeply."),
    "no sections": ("just words\n", "' must hold the sections data, task, model, training, got 'just words'."),
    "code": (
        "data: !!python/object/apply:os.getcwd []\n",
        "' is not valid YAML: line 1, column 7: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object/apply:os.getcwd'.",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file(case: str, tmp_path: Path) -> None:
    text, sentence = BAD_FILES[case]
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"'{path}{sentence}"
