"""Results of a study: its best trial, all trials, and the importances of the parameters, with figures."""

from __future__ import annotations

import warnings
from typing import Any

from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from stablernn.atomic_files import to_json_types, write_json
from stablernn.errors import TrainingError
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.tune.folder import StudyFolder
from stablernn.training.tune.plots import plot_history, plot_importances
from stablernn.training.tune.space import Space
from stablernn.training.tune.storage import quiet
from stablernn.training.tune.study import TuningStudy

Results = dict[str, Any]

_FEWEST_TRIALS = 10
"""Trials below which the importances of parameters are noise: the best tenth of fewer is no sample."""
_STATES = {TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def write_results(study: TuningStudy, folder: StudyFolder, space: Space, metric: str, require: str) -> Results:
    """Write ``results.json`` and the figures, and return the content of the file.

    Raises:
        TrainingError: If no trial was successful.
    """
    trials = study.finished()
    best = study.best()
    if best is None:
        raise TrainingError(_describe_failure(trials, require))
    better = direction(metric) or "lower"
    documents = [_describe(trial, study, space) for trial in trials]
    importances = _importances(study)
    done = [document for document in documents if document["state"] == "done"]
    ranked = sorted(done, key=lambda document: document["value"], reverse=better == "higher")
    results: Results = {
        "study": study.study.study_name,
        "output": str(folder.path),
        "storage": study.storage_name,
        "metric": metric,
        "better": better,
        "require": require,
        "counts": {
            state: sum(document["state"] == state for document in documents) for state in ("done", "pruned", "failed")
        },
        "running": len(study.running()),
        "best": ranked[0],
        "ranked": [document["number"] for document in ranked],
        "importances": importances,
        "trials": documents,
    }
    write_json(folder.results, results)
    plot_history(folder.plots / "history.png", documents, metric, better)
    if importances:
        plot_importances(folder.plots / "importances.png", importances, len(done))
    return dict(to_json_types(results))


def _describe(trial: FrozenTrial, study: TuningStudy, space: Space) -> dict[str, Any]:
    facts = trial.user_attrs
    settings = space.settings(trial.params)
    return {
        "number": trial.number,
        "state": _STATES[trial.state],
        "value": trial.value if trial.state == TrialState.COMPLETE else None,
        "certificate": facts.get("kind"),
        "epochs": facts.get("epochs"),
        "reason": facts.get("reason") or ("its process died several times" if "status" not in facts else ""),
        "cell": settings["model.cell"],
        "settings": settings,
        "run": study.run_path(trial),
        "resumes": facts.get("resumes"),
    }


def _importances(study: TuningStudy) -> dict[str, float]:
    """Return the shares of the parameters in the score, the largest first; empty where there are too few trials."""
    values = [trial.value for trial in study.finished() if trial.state == TrialState.COMPLETE]
    if len(values) < _FEWEST_TRIALS or len(set(values)) < 2:
        return {}
    # PED-ANOVA needs no other package, and counts a parameter that some trials lack by those that have it.
    with quiet(), warnings.catch_warnings():
        # It warns of parameters with too few trials, whose importance is then 0.
        warnings.simplefilter("ignore")
        importances = get_param_importances(study.study, evaluator=PedAnovaImportanceEvaluator())
    return {name: round(value, 4) for name, value in importances.items()}


def _describe_failure(trials: list[FrozenTrial], require: str) -> str:
    if not trials:
        return "No trial was finished in the time. Run the same command again to go on, with a longer --timeout."
    reasons = [str(trial.user_attrs.get("reason") or "its process died several times") for trial in trials]
    most_frequent = max(dict.fromkeys(reasons), key=reasons.count)
    sentence = f"None of {len(trials)} trials was successful; most often: {most_frequent}."
    if any(trial.user_attrs.get("status") == "weaker" for trial in trials):
        sentence += (
            f" Search cells that training keeps '{require}' (docs/stability.md names them), with "
            "--set training.certified=true where that is not the default, or require less."
        )
    return sentence
