"""`stablernn eval --robustness`: attacks, certified radii, noise and curvature of a classifier."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablernn_cli.errors import UsageError
from stablernn_cli.options import Split
from stablernn_cli.output import Output, drop_none
from stablernn_cli.records import record_report
from stablernn_cli.targets import Target, is_run, open_weights

if TYPE_CHECKING:
    from stablernn.nn.models import Classifier
    from stablernn.robustness.settings import Settings

PANEL = "Robustness"

RobustnessOption = Annotated[
    bool,
    typer.Option(
        "--robustness",
        help="Classification: accuracy under attacks and noise, certified accuracy, curvature of the loss. The report "
        "is stored in the run, or as a record of the version.",
        rich_help_panel=PANEL,
    ),
]
BudgetsOption = Annotated[
    str | None,
    typer.Option(
        "--attack-budgets",
        metavar="B,B,...",
        help="Largest change of a value, in standard deviations of its feature; default: .001,.003,.01,.03,.1,.3.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
L2BudgetsOption = Annotated[
    str | None,
    typer.Option(
        "--attack-budgets-l2",
        metavar="B,B,...",
        help="Largest 2-norm of all changes of a sequence, in the same unit; default: .01,.03,.1,.3,1,3.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        "--attack-steps", help="Gradient steps of an attack; default: 20.", show_default=False, rich_help_panel=PANEL
    ),
]
SequencesOption = Annotated[
    int | None,
    typer.Option(
        "--attack-sequences",
        help="Number of sequences to measure, drawn at random; default: 200.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
ClipOption = Annotated[
    bool,
    typer.Option(
        "--attack-clip", help="Keep attacked values within their feature's range in training.", rich_help_panel=PANEL
    ),
]
RandomStartOption = Annotated[
    bool,
    typer.Option("--attack-random-start", help="Start PGD at a random point of the ball.", rich_help_panel=PANEL),
]


@dataclass(frozen=True)
class RobustnessOptions:
    """Values of the options, as they were typed."""

    robustness: bool = False
    budgets: str | None = None
    budgets_l2: str | None = None
    steps: int | None = None
    sequences: int | None = None
    clip: bool = False
    random_start: bool = False

    def settings(self, task: str, name: str) -> Settings | None:
        """Return the settings of the measurement, or None without ``--robustness``.

        Raises:
            UsageError: If an option needs ``--robustness``, the model does not classify, or budgets are not numbers.
            stablernn.errors.ConfigError: If a number is out of its range.
        """
        values: dict[str, Any] = {
            "linf_budgets": _numbers("--attack-budgets", self.budgets),
            "l2_budgets": _numbers("--attack-budgets-l2", self.budgets_l2),
            "steps": self.steps,
            "sequences": self.sequences,
            # A flag that is off is left to the default, like an option that is absent.
            "clip": self.clip or None,
            "random_start": self.random_start or None,
        }
        options = drop_none(values)
        if not self.robustness:
            if options:
                raise UsageError("The options --attack-... need --robustness. Add it, or leave them out.")
            return None
        if task != "classify":
            raise UsageError(f"--robustness is for classification, and {name} is for '{task}'. Leave it out.")
        from stablernn.robustness.settings import Settings

        return Settings(**options)


def measure(output: Output, target: str, model: Target, data: Any, split: Split, settings: Settings) -> dict[str, Any]:
    """Measure robustness, and store the report with two plots in the run's directory or as a record of the version.

    Returns:
        ``robustness``, the report; for a version also ``records``.
    """
    from stablernn.robustness.plots import write_report
    from stablernn.robustness.report import robustness

    # Attacks follow gradients, so a version is measured by its torch weights instead of its graph.
    report = robustness(
        _classifier(model),
        data,
        split,
        settings,
        labels=model.labels or None,
        features=model.features,
        stage=lambda name: output.status(f"Robustness of {target}: {name} ..."),
    )
    document: dict[str, Any] = {"robustness": report}
    # A run is a directory of the user; a version never changes, so its report is attached to it.
    if is_run(target):
        paths = write_report(Path(target), report)
        output.note(f"Wrote {', '.join(str(path) for path in paths)}.")
    else:
        with tempfile.TemporaryDirectory(prefix="stablernn-eval-") as folder:
            write_report(Path(folder), report)
            document["records"] = record_report(output, model.name, "robustness", Path(folder))
    return document


def show(output: Output, report: Mapping[str, Any]) -> None:
    """Print the report as text."""
    output.text()
    output.text(f"Robustness on {report['sequences']} sequences; changes in standard deviations of each feature")
    # A table for each norm: a row for each budget, a column for each attack and for the certified accuracy.
    for norm, title in (("linf", "Largest change (linf)"), ("l2", "2-norm of the change (l2)")):
        output.text()
        attacks = [attack for attack in report["attacks"] if attack["norm"] == norm]
        certified = report["certified"][norm]
        columns = ["change up to", *(_ATTACK_NAMES[attack["name"]] for attack in attacks), "certified"]
        budgets = attacks[0]["budgets"]
        no_values = [None] * len(budgets)
        rows = [
            # The first row is without a change.
            [0.0, *[report["accuracy"]] * len(attacks), None if certified is None else report["accuracy"]],
            *zip(budgets, *(attack["accuracy"] for attack in attacks), certified or no_values, strict=True),
        ]
        output.table(columns, rows, title=title)
    output.text()
    output.facts(_facts(report))
    output.text()
    output.table(("noise", "level", "accuracy", "standard error"), _noise_rows(report["noise"]), title="Noise")


_ATTACK_NAMES = {"pgd": "PGD", "deepfool": "DeepFool"}


def _facts(report: Mapping[str, Any]) -> dict[str, object]:
    # DeepFool searches the smallest change; PGD stays within a budget.
    deepfool = {attack["norm"]: attack for attack in report["attacks"] if attack["name"] == "deepfool"}
    certified, hessian = report["certified"], report["hessian"]
    facts: dict[str, object] = {
        "median change that flips a label": ", ".join(
            f"{_number(attack['median_perturbation'])} ({norm})" for norm, attack in deepfool.items()
        ),
        "median certified radius": certified["reason"] or f"{_radius_text(certified['median_radius'])} (l2)",
    }
    if hessian is not None:
        facts |= {
            "curvature, largest": hessian["largest"],
            "curvature, smallest": hessian["smallest"],
            "curvature, trace": f"{_number(hessian['trace'])} +- {_number(hessian['trace_standard_error'])}",
            "condition number": hessian["condition_number"],
        }
    return facts


def _noise_rows(noise: Mapping[str, Mapping[str, Sequence[float]]]) -> list[list[object]]:
    return [
        [kind.replace("_", " "), level, accuracy, error]
        for kind, curve in noise.items()
        for level, accuracy, error in zip(*(curve[key] for key in _CURVE), strict=True)
        # Level 0 is the accuracy without noise, which the other tables have.
        if level
    ]


_CURVE = ("levels", "accuracy", "standard_error")


def _classifier(model: Target) -> Classifier:
    """Return the torch model; the exported graphs have no gradients."""
    from stablernn.nn.models import Classifier
    from stablernn.training import TorchPredictor

    loaded = model.predictor.model if isinstance(model.predictor, TorchPredictor) else None
    classifier = loaded or open_weights(model.name)[1]
    assert isinstance(classifier, Classifier)
    return classifier


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} must be a list of numbers such as 0.01,0.05,0.1, got '{text}'.") from None


def _radius_text(radius: float | None) -> str:
    """Return a certified radius, a lower bound, rounded down."""
    from stablernn_registry.documents.rounding import format_lower

    return "-" if radius is None else format_lower(radius, 4)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
