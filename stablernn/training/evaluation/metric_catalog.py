"""The catalog of metrics: the facts about each one that training, the command line and the documentation need.

Selection of the best epoch, ``stablernn registry policy`` and the reference of metrics read it. It
imports neither numpy nor torch, so that a command that needs a direction only does not wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Direction = Literal["higher", "lower"]
# A copy of `stablernn.data.options.TaskName`, whose module imports numpy.
Task = Literal["classify", "forecast", "predict-next", "simulate"]
TASKS: tuple[Task, ...] = get_args(Task)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of predictions.

    Attributes:
        name: Name in scores, ``metrics.json`` and printed tables.
        tasks: Tasks that are scored by it.
        formula: Definition in Markdown, in the symbols of docs/reference/metrics.md.
        unit: Unit, and the range where it is bounded; "data" is the unit of the targets.
        better: Direction of improvement; None if neither direction is an improvement by itself.
        undefined: Values of 0/0 and x/0, or of an empty part.
        source: Source of the definition.
        parameter: End of ``name`` that stands for a number, such as ``k`` in ``pinball_k``; empty if the name is whole.
    """

    name: str
    tasks: tuple[Task, ...]
    formula: str
    unit: str
    better: Direction | None
    undefined: str = ""
    source: str = ""
    parameter: str = ""

    def has_name(self, name: str) -> bool:
        """Return True for the name of this metric, with any value of its parameter."""
        if self.parameter:
            return name.startswith(self.name.removesuffix(self.parameter))
        return name == self.name


METRICS: tuple[Metric, ...] = (
    Metric(
        name="mse",
        tasks=("forecast", "predict-next"),
        formula="mean of `(f - y)^2`",
        unit="data, squared",
        better="lower",
    ),
    Metric(name="mae", tasks=("forecast",), formula="mean of `|f - y|`", unit="data", better="lower"),
    Metric(
        name="rmse",
        tasks=("forecast", "predict-next", "simulate"),
        formula="square root of `mse`; of a simulation after the washout, for each output",
        unit="data",
        better="lower",
    ),
    Metric(
        name="rmse_k",
        parameter="k",
        tasks=("simulate",),
        formula="`rmse` of the output `k`, or after `k` samples of each experiment",
        unit="data",
        better="lower",
    ),
    Metric(
        name="nrmse",
        tasks=("simulate",),
        formula="`rmse` over the standard deviation of the output on the same samples, mean over the outputs",
        unit="1",
        better="lower",
        undefined="a constant output: missing",
    ),
    Metric(
        name="fit",
        tasks=("simulate",),
        formula="`100 (1 - nrmse)`, which is `100 (1 - norm of (y - f) / norm of (y - mean of y))`",
        unit="per cent, at most 100",
        better="higher",
        source="`compare` of MATLAB's System Identification Toolbox",
    ),
    Metric(
        name="whiteness",
        tasks=("simulate",),
        formula="share of lags 1 to 25 at which the residuals correlate with themselves beyond the 99 % band; the "
        "largest over the outputs",
        unit="1, about 0.01 for white residuals",
        better=None,
        source="Ljung 1999, section 16.6",
    ),
    Metric(
        name="input_correlation",
        tasks=("simulate",),
        formula="share of lags 0 to 25 at which the residuals correlate with an earlier input beyond the 99 % band; "
        "the largest over outputs and inputs",
        unit="1, about 0.01 if nothing of the input is left",
        better=None,
        source="Ljung 1999, section 16.6",
    ),
    Metric(
        name="mase",
        tasks=("forecast",),
        formula="for each series and target `mae` over its scale, then the mean; the scale is the mean of "
        "`|y_t - y_(t-s)|` over the training steps, `s` the season",
        unit="1",
        better="lower",
        undefined="scale 0: counts as 0 if the forecast is exact, else skipped; no scale at all: skipped",
        source="Hyndman, Koehler 2006",
    ),
    Metric(
        name="smape",
        tasks=("forecast",),
        formula="mean of `2 |f - y| / (|f| + |y|)`",
        unit="1, from 0 to 2",
        better="lower",
        undefined="0/0 is 0",
        source="M competitions, which print 100 times this",
    ),
    Metric(
        name="wape",
        tasks=("forecast",),
        formula="sum of `|f - y|` over the sum of `|y|`",
        unit="1",
        better="lower",
        undefined="0/0 is 0, x/0 missing",
        source="`nd` elsewhere",
    ),
    Metric(
        name="pinball_k",
        parameter="k",
        tasks=("forecast",),
        formula="mean of `max(k (y - q_k), (k - 1)(y - q_k))`",
        unit="data",
        better="lower",
        source="Koenker, Bassett 1978",
    ),
    Metric(
        name="crps",
        tasks=("forecast",),
        formula="twice the mean of `pinball_k` over the levels",
        unit="data",
        better="lower",
        source="Gneiting, Raftery 2007",
    ),
    # Best at the nominal share `p`, so that more is not better.
    Metric(
        name="coverage_p",
        parameter="p",
        tasks=("forecast",),
        formula="share of `q_a <= y <= q_b`, for each two levels with `b = 1 - a` and `p = b - a`",
        unit="1",
        better=None,
    ),
    # A narrow interval is better only among those that have their coverage.
    Metric(
        name="width_p",
        parameter="p",
        tasks=("forecast",),
        formula="mean of `q_b - q_a`",
        unit="data",
        better=None,
    ),
    Metric(
        name="relative_mae",
        tasks=("forecast",),
        formula="`mae` over that of the seasonal naive forecast on the same windows",
        unit="1",
        better="lower",
        undefined="0/0 is 1, x/0 missing",
    ),
    Metric(
        name="accuracy",
        tasks=("classify", "predict-next"),
        formula="share of sequences, or of steps with a target, with `c` right",
        unit="1, from 0 to 1",
        better="higher",
    ),
    Metric(
        name="macro_f1",
        tasks=("classify",),
        formula="F1 of each class, mean over the classes that occur in truth or prediction",
        unit="1, from 0 to 1",
        better="higher",
    ),
    Metric(
        name="log_loss",
        tasks=("classify",),
        formula="mean of `-ln p` of the true class, `p` at least 1.2e-7",
        unit="nats",
        better="lower",
    ),
    Metric(
        name="roc_auc",
        tasks=("classify",),
        formula="area under the ROC curve of each class against the rest, mean over the classes that have both",
        unit="1, from 0 to 1",
        better="higher",
        undefined="missing where no class has both",
        source="Fawcett 2006",
    ),
    Metric(
        name="ece",
        tasks=("classify",),
        formula="15 equal bins of the highest probability: mean distance of the bin's accuracy from its mean "
        "probability, weighted by its sequences",
        unit="1, from 0 to 1",
        better="lower",
        undefined="an empty bin counts nothing",
        source="Guo and others 2017",
    ),
    Metric(
        name="nll",
        tasks=("predict-next",),
        formula="mean over the steps of the negative log-likelihood of the target: `-ln p` of the true class, or its "
        "sum over binary targets",
        unit="nats",
        better="lower",
    ),
    Metric(name="bpc", tasks=("predict-next",), formula="`nll / ln 2`", unit="bits", better="lower"),
    Metric(
        name="perplexity",
        tasks=("predict-next",),
        formula="`e^nll`",
        unit="1, 1 or more",
        better="lower",
        undefined="infinite from an `nll` of 709 on",
    ),
    Metric(
        name="loss",
        tasks=("predict-next",),
        formula="`nll`, or `mse` for real targets",
        unit="that of `nll` or `mse`",
        better="lower",
    ),
)


def metrics_of(task: Task) -> tuple[Metric, ...]:
    """Return the metrics of a task, in the order of the catalog."""
    return tuple(metric for metric in METRICS if task in metric.tasks)


def find_metric(name: str) -> Metric | None:
    """Return the metric of a name such as ``mae`` or ``pinball_0.9``; None if the catalog has no such metric."""
    return next((metric for metric in METRICS if metric.has_name(name)), None)


def direction(name: str) -> Direction | None:
    """Return the direction in which a metric improves; None if it has none, or is not in the catalog."""
    metric = find_metric(name)
    return None if metric is None else metric.better
