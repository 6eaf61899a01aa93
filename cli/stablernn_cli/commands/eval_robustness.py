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
from stablernn_cli.output import Output
from stablernn_cli.records import keep
from stablernn_cli.targets import Target, is_run, open_weights

if TYPE_CHECKING:
    from stablernn.nn.models import Classifier
    from stablernn.robustness.settings import Settings

PANEL = "Robustness"

RobustnessOption = Annotated[
    bool,
    typer.Option(
        "--robustness",
        help="Classification: accuracy under attacks and noise, what is certified, curvature of the loss. A run keeps "
        "the report, a version gets it as a record.",
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
        help="The same as 2-norm of all changes of a sequence; default: .01,.03,.1,.3,1,3.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        "--attack-steps", help="Gradients that an attack takes; default: 20.", show_default=False, rich_help_panel=PANEL
    ),
]
SequencesOption = Annotated[
    int | None,
    typer.Option(
        "--attack-sequences",
        help="How many sequences are measured, drawn at random; default: 200.",
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
    typer.Option("--attack-random-start", help="Let PGD begin at a random point of the ball.", rich_help_panel=PANEL),
]


@dataclass(frozen=True)
class Asked:
    """What the options say, as they were given."""

    robustness: bool = False
    budgets: str | None = None
    budgets_l2: str | None = None
    steps: int | None = None
    sequences: int | None = None
    clip: bool = False
    random_start: bool = False

    def settings(self, task: str, name: str) -> Settings | None:
        """How to measure; None where nothing was asked for.

        Raises:
            UsageError: If an option needs ``--robustness``, the model does not classify, or budgets are no numbers.
            stablernn.errors.ConfigError: If a number is out of its range.
        """
        given: dict[str, Any] = {
            "linf_budgets": _numbers("--attack-budgets", self.budgets),
            "l2_budgets": _numbers("--attack-budgets-l2", self.budgets_l2),
            "steps": self.steps,
            "sequences": self.sequences,
            "clip": self.clip or None,
            "random_start": self.random_start or None,
        }
        used = {key: value for key, value in given.items() if value is not None}
        if not self.robustness:
            if used:
                raise UsageError("The options --attack-... are for --robustness. Add it, or leave them out.")
            return None
        if task != "classify":
            raise UsageError(f"--robustness is for classes, and {name} is for '{task}'. Leave it out.")
        from stablernn.robustness.settings import Settings

        return Settings(**used)


def measure(output: Output, target: str, model: Target, data: Any, split: Split, settings: Settings) -> dict[str, Any]:
    """``robustness``, the report, and ``records`` of a version.

    With two pictures it is kept in the run's directory as ``robustness.json``, or beside the version as a record.
    """
    from stablernn.robustness.plots import write_report
    from stablernn.robustness.report import robustness

    report = robustness(
        _classifier(model),
        data,
        split,
        settings,
        labels=model.labels or None,
        features=model.features,
        stage=lambda words: output.status(f"Robustness of {target}: {words} ..."),
    )
    document: dict[str, Any] = {"robustness": report}
    if is_run(target):
        written = write_report(Path(target), report)
        output.note(f"Wrote {', '.join(str(path) for path in written)}.")
    else:
        with tempfile.TemporaryDirectory(prefix="stablernn-eval-") as folder:
            write_report(Path(folder), report)
            document["records"] = keep(output, model.name, "robustness", Path(folder))
    return document


def show(output: Output, report: Mapping[str, Any]) -> None:
    """The report for people."""
    output.text()
    output.text(f"Robustness on {report['sequences']} sequences; changes in standard deviations of each feature")
    for norm, title in (("linf", "Largest change (linf)"), ("l2", "2-norm of the change (l2)")):
        output.text()
        attacks = [attack for attack in report["attacks"] if attack["norm"] == norm]
        certified = report["certified"][norm]
        columns = ["change up to", *(_WORDS[attack["name"]] for attack in attacks), "certified"]
        none = [None] * len(attacks[0]["budgets"])
        budgets = attacks[0]["budgets"]
        rows = [
            [0.0, *[report["accuracy"]] * len(attacks), None if certified is None else report["accuracy"]],
            *zip(budgets, *(attack["accuracy"] for attack in attacks), certified or none, strict=True),
        ]
        output.table(columns, rows, title=title)
    output.text()
    output.facts(_facts(report))
    output.text()
    output.table(("noise", "level", "accuracy", "standard error"), _noise_rows(report["noise"]), title="Noise")


_WORDS = {"pgd": "PGD", "deepfool": "DeepFool"}


def _facts(report: Mapping[str, Any]) -> dict[str, object]:
    reached = {attack["norm"]: attack for attack in report["attacks"] if attack["name"] == "deepfool"}
    certified, hessian = report["certified"], report["hessian"]
    facts: dict[str, object] = {
        "median change that flips a label": ", ".join(
            f"{_number(attack['median_perturbation'])} ({norm})" for norm, attack in reached.items()
        ),
        "median certified radius": certified["reason"] or f"{_number(certified['median_radius'])} (l2)",
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
        if level
    ]


_CURVE = ("levels", "accuracy", "standard_error")


def _classifier(model: Target) -> Classifier:
    """The torch model: gradients do not flow through the graph that is served."""
    from stablernn.nn.models import Classifier
    from stablernn.training import TorchPredictor

    at_hand = model.predictor.model if isinstance(model.predictor, TorchPredictor) else None
    found = at_hand or open_weights(model.name)[1]
    assert isinstance(found, Classifier)
    return found


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} is a list of numbers such as 0.01,0.05,0.1, got '{text}'.") from None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
