"""Studies: trials whose process died are repeated a few times, pruning, suggestions after a stop, a damaged journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from stablernn.errors import ConfigError, TrainingError
from stablernn.training.settings.load import validate
from stablernn.training.tune import study as study_module
from stablernn.training.tune.space import Parameter, Range, Space
from stablernn.training.tune.study import (
    MOST_ATTEMPTS,
    StartedTrial,
    StudyFolder,
    TuningStudy,
    open_database,
    write_results,
)
from stablernn.training.tune.trial import Outcome, Scores, run_lock

SPACE = Space(
    validate({"data": {"source": "digits"}, "model": {"num_layers": 1}}),
    ("lru",),
    (Parameter("training.lr", Range(1e-4, 1e-1, log=True), ""),),
    {"lru": ()},
    frozenset(),
)


def open_study(folder: Path, *, storage: str | None = None, **changes: Any) -> TuningStudy:
    definition = {"metric": "accuracy", "training.epochs": 2, **changes}
    return TuningStudy(
        StudyFolder(folder),
        storage,
        direction="higher",
        seed=0,
        definition=definition,
        first=[{"training.lr": 0.01}],
    )


def start(study: TuningStudy) -> StartedTrial:
    return study.start_trial(SPACE)


def done(value: float) -> Outcome:
    return Outcome("done", value, "contracting", 2)


@pytest.mark.parametrize(
    "storage", [None, pytest.param("sqlite:///{}/study.db", marks=pytest.mark.slow)], ids=["journal", "sqlite"]
)
def test_a_trial_whose_process_died_is_repeated_in_its_run(tmp_path: Path, storage: str | None) -> None:
    url = None if storage is None else storage.format(tmp_path)
    first = start(open_study(tmp_path / "study", storage=url))
    # Another process finds the trial running, with a free lock.
    study = open_study(tmp_path / "study", storage=url)
    assert study.count_left(1, []) == 1
    again = start(study)
    assert (again.run, again.resumes) == (first.run, first.number)
    assert again.trial.params == first.trial.params == {"training.lr": 0.01}
    study.finish(again, done(0.5))
    assert [trial.number for trial in study.finished()] == [again.number]
    assert study.study.trials[first.number].state == TrialState.FAIL


def test_a_trial_is_alive_while_its_run_is_locked(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    started = start(study)
    with run_lock(StudyFolder(tmp_path).run(started.run)):
        assert open_study(tmp_path).count_left(2, []) == 1
        assert len(study.running()) == 1


def test_parameters_over_which_processes_die_again_and_again_are_given_up(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    for _ in range(MOST_ATTEMPTS):
        study.repeat(start(study).number)
    assert [trial.state for trial in study.finished()] == [TrialState.FAIL]
    assert start(study).trial.params != {"training.lr": 0.01}


def test_a_trial_below_the_median_of_the_others_is_pruned_and_is_never_the_best(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    for _ in range(5):
        started = start(study)
        assert study.report(started, Scores({50: 0.8, 100: 0.9}))
        study.finish(started, done(0.9))
    late = start(study)
    assert study.report(late, Scores({10: 0.1}))
    assert not study.report(late, Scores({10: 0.1, 50: 0.2}))
    study.finish(late, Outcome("pruned", 0.95, None, 1, "worse"))
    best = study.best()
    assert best is not None
    assert best.number == 0
    assert study.finished()[late.number].state == TrialState.PRUNED


def test_a_search_in_which_nothing_is_proved_ends_with_what_to_do(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    study.finish(
        start(study), Outcome("weaker", 0.9, "none", 1, "proved 'none', less than the 'bounded' that is required")
    )
    with pytest.raises(
        TrainingError, match="None of 1 trials was successful; most often: proved 'none', less"
    ) as failed:
        write_results(study, StudyFolder(tmp_path), SPACE, "accuracy", "bounded")
    assert "Search cells that training keeps 'bounded' (docs/background/stability.md names them)" in str(failed.value)


def test_a_resumed_study_suggests_what_one_that_was_never_stopped_does(tmp_path: Path) -> None:
    def search(folder: Path, *, is_resumed: bool) -> list[Any]:
        study = open_study(folder)
        for number in range(14):
            study = open_study(folder) if is_resumed else study
            started = start(study)
            study.finish(started, done(number / 20))
        return [trial.params["training.lr"] for trial in study.finished()]

    uninterrupted = search(tmp_path / "one", is_resumed=False)
    assert search(tmp_path / "other", is_resumed=True) == uninterrupted
    assert len(set(uninterrupted)) == 14


def test_an_unfinished_last_line_of_a_journal_is_cut_off(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    study.finish(start(study), done(0.5))
    with (tmp_path / "journal.log").open("ab") as file:
        file.write(b'{"op_code": 4, "study')
    study = open_study(tmp_path)
    study.finish(start(study), done(0.6))
    assert [trial.value for trial in open_study(tmp_path).finished()] == [0.5, 0.6]


def test_another_definition_is_refused_with_both_values(tmp_path: Path) -> None:
    open_study(tmp_path)
    with pytest.raises(ConfigError, match="was begun with training.epochs=2, got 3"):
        open_study(tmp_path, **{"training.epochs": 3})


def test_a_password_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "postgresql://user:hidden@localhost:1/none"
    with pytest.raises(ConfigError, match=r"\*\*\*") as refusal:
        open_study(tmp_path, storage=address)
    assert "hidden" not in str(refusal.value)
    database = f"sqlite:///{tmp_path}/study.db"
    monkeypatch.setattr(study_module, "open_database", lambda url, on_stale: open_database(database, on_stale))
    assert open_study(tmp_path, storage=address).storage_name == "postgresql://user:***@localhost:1/none"
    assert "user:***@" in (tmp_path / "study.json").read_text()
    assert not any(b"hidden" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
