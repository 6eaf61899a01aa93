from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stablernn.errors import InterruptedRun
from stablernn.training import Progress, load_config, train
from stablernn.training.stored_runs import read_run


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes a key."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_a_finished_run_has_the_facts_of_its_summary(trained: Path) -> None:
    run = read_run(trained)
    summary = json.loads((trained / "summary.json").read_text())
    data = json.loads((trained / "data.json").read_text())
    assert (run.state, run.problem) == ("done", None)
    assert (run.data, run.task, run.cell, run.fingerprint) == ("digits", "classify", "lipschitz", data["fingerprint"])
    assert (run.epochs, run.planned_epochs, run.best_epoch) == (2, 2, summary["best_epoch"])
    for key in ("parameters", "steps", "seconds", "metrics"):
        assert getattr(run, key) == summary[key], key
    assert run.metric == "accuracy"
    assert run.score("test") == summary["metrics"]["test"]["accuracy"]
    assert run.score("test", "log_loss") == summary["metrics"]["test"]["log_loss"]
    assert run.certificate is not None
    assert run.certificate["contraction_rate"] == summary["certificate"]["contraction_rate"] < 1


def test_a_run_is_running_until_its_training_is_stopped(tmp_path: Path) -> None:
    states = []

    def stop(progress: Progress) -> None:
        states.append(read_run(tmp_path / "run").state)
        raise KeyboardInterrupt

    config = load_config(overrides=["data.source=digits", "model.cell=lipschitz", "model.hidden_size=4"])
    with pytest.raises(InterruptedRun):
        train(config, tmp_path / "run", progress=stop)
    run = read_run(tmp_path / "run")
    assert (states, run.state) == (["running"], "stopped")
    assert (run.epochs, run.metrics, run.metric, run.parameters) == (0, {}, None, None)


def test_a_stopped_run_has_the_validation_scores_of_its_best_epoch(run_dir: Path) -> None:
    (run_dir / "summary.json").unlink()
    first, second = (json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines())
    second["validation"]["accuracy"] = first["validation"]["accuracy"] - 0.01
    (run_dir / "metrics.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    run = read_run(run_dir)
    assert run.state == "stopped"
    assert (run.epochs, run.steps, run.seconds, run.best_epoch) == (2, second["step"], second["seconds"], 1)
    assert run.metrics == {"validation": first["validation"]}


def test_a_run_with_a_loss_that_grew_is_diverged(run_dir: Path) -> None:
    edit_json(run_dir / "summary.json", diverged=True, warnings=["Training diverged: the loss grew."])
    run = read_run(run_dir)
    assert (run.state, run.warnings) == ("diverged", ("Training diverged: the loss grew.",))


DAMAGE: dict[str, tuple[str, str, str]] = {
    "settings cut": ("config.yaml", "data: {source: dig", "cannot be read as YAML: "),
    "settings of another program": ("config.yaml", "model: 3\n", "does not describe a run: 'model': Input should be "),
    "data cut": ("data.json", '{"name": "dig', "cannot be read as JSON: Unterminated string"),
    "data without a hash": ("data.json", '{"name": "a", "task": "classify"}', "it has no 'fingerprint'."),
    "data of another type": ("data.json", "[]", "does not describe a run: Input should be "),
    "summary cut": ("summary.json", '{"run": "a", "metrics": {"valid', "cannot be read as JSON: "),
    "summary without scores": ("summary.json", '{"parameters": 3}', "does not describe a run: it has no 'epochs'."),
    "epoch without a number": ("metrics.jsonl", '{"step": 1}\n', "does not describe epochs: it has no 'epoch'."),
    "epoch cut": ("metrics.jsonl", '{"epoch": 1}\n{"epo', "is not a JSON object. Restore the file, or train again."),
    "epoch of another type": ("metrics.jsonl", "3\n", "is not a JSON object. Restore the file, or train again."),
    "binary": ("metrics.jsonl", "\udcff", "cannot be read: 'utf-8' codec can't decode byte"),
    "environment": ("env.json", "{}", "does not describe a run: it has no 'time'."),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_file_is_named_with_the_reason(run_dir: Path, case: str) -> None:
    name, content, reason = DAMAGE[case]
    (run_dir / name).write_bytes(content.encode(errors="surrogateescape"))
    run = read_run(run_dir)
    assert run.state == "damaged"
    assert run.problem is not None
    assert f"'{run_dir / name}'" in run.problem
    assert reason in run.problem


def test_a_damaged_run_keeps_the_facts_of_its_other_files(run_dir: Path) -> None:
    (run_dir / "data.json").write_text("{")
    run = read_run(run_dir)
    assert (run.state, run.data, run.cell, run.epochs) == ("damaged", None, "lipschitz", 2)
    assert run.score("test") is not None
