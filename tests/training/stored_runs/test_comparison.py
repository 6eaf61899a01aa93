from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from stablernn.errors import CheckpointError
from stablernn.training import Config, load_config
from stablernn.training.stored_runs import (
    changed_settings,
    differing_settings,
    has_same_data,
    read_run,
    read_settings,
)


def settings(*overrides: str) -> Config:
    return load_config(overrides=["data.source=digits", "model.cell=lipschitz", *overrides])


def test_settings_that_differ_have_a_value_for_each_run() -> None:
    configs = [settings(), settings("training.lr=0.1", "training.seed=3"), settings("training.seed=3")]
    assert differing_settings(configs) == {"training.lr": [None, 0.1, None], "training.seed": [0, 3, 3]}


def test_an_option_that_only_one_cell_has_is_none_for_the_others() -> None:
    configs = [settings("model.cell_options={step_size: 0.1}"), settings("model.cell=gru")]
    assert differing_settings(configs) == {
        "model.cell": ["lipschitz", "gru"],
        "model.cell_options.step_size": [0.1, None],
    }


def test_settings_that_were_set_are_listed_with_their_defaults() -> None:
    config = settings(
        "model.hidden_size=8", "training.lr=0.1", "training.device=cpu", "model.cell_options={step_size: 0.1}"
    )
    assert changed_settings(config) == {
        "model.hidden_size": (8, 64),
        "model.cell_options.step_size": (0.1, 0.5),
        # The recommendation of the catalog, not of the schema.
        "training.lr": (0.1, 0.005),
        "training.device": ("cpu", "auto"),
    }


def test_settings_that_an_older_version_did_not_store_have_their_defaults(run_dir: Path) -> None:
    path = run_dir / "config.yaml"
    before = read_settings(read_run(run_dir))
    tree = yaml.safe_load(path.read_text())
    del tree["training"]["shift"]
    path.write_text(yaml.safe_dump(tree))
    assert differing_settings([before, read_settings(read_run(run_dir))]) == {}


@pytest.mark.parametrize(
    ("content", "reason"),
    [("data: {source: dig", "is not valid YAML: line 1"), ("data: {sources: digits}", "Unknown key 'data.sources'.")],
    ids=["cut", "unknown key"],
)
def test_damaged_settings_are_refused(run_dir: Path, content: str, reason: str) -> None:
    (run_dir / "config.yaml").write_text(content)
    with pytest.raises(CheckpointError) as error:
        read_settings(read_run(run_dir))
    assert str(error.value).startswith(f"The settings of the run in '{run_dir}' cannot be read: ")
    assert reason in str(error.value)
    assert str(error.value).endswith("Restore its config.yaml, or train again.")


def test_data_are_the_same_if_the_fingerprints_are(trained: Path) -> None:
    run = read_run(trained)
    assert has_same_data([run, run])
    assert not has_same_data([run, replace(run, fingerprint="sha256:0")])
    assert not has_same_data([replace(run, fingerprint=None)] * 2)
