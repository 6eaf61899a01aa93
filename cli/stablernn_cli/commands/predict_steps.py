"""`stablernn predict` where every step has an answer: a text or sequences in, a row a step out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.targets import Target

if TYPE_CHECKING:
    import numpy.typing as npt

    from stablernn.data.readers.stepwise import StepFile

    Array = npt.NDArray[Any]

Rows = list[list[Any]]


def read(model: Target, source: str) -> StepFile:
    """The sequences of a file, in the model's vocabulary or channels.

    Raises:
        stablernn.errors.DataError: If the file is not one of sequences, or does not fit the model.
    """
    from stablernn.data.readers.stepwise import read_steps, require_step_file
    from stablernn.errors import DataError

    found = read_steps(require_step_file(Path(source)), model.features, for_model=True)
    if found.tokens != model.tokens:
        kinds = ("numbers", "tokens")
        raise DataError(f"'{found.name}' holds {kinds[found.tokens]}, {model.name} expects {kinds[model.tokens]}.")
    answers = len(model.labels or model.targets)
    if found.has_targets and (found.output != model.output or len(found.outputs) > answers):
        raise DataError(
            f"'{found.name}' has targets for {len(found.outputs)} outputs ({found.output}), {model.name} answers "
            f"{answers} ({model.output}). Leave out 'y' to get answers alone."
        )
    return found


def step_rows(model: Target, found: StepFile) -> tuple[list[str], Rows]:
    """A line a step: the likeliest class and its probability, or the probability of each switch, or each number.

    Behind classes stand what came, ``target``, and its ``nll`` in nats, where the file says so.
    """
    import numpy as np

    from stablernn.data.step_data import NO_TARGET

    rows: Rows = []
    has_targets = found.has_targets or model.labels == model.features
    if model.output == "categorical":
        columns = ["id", "step", "label", "probability", "target", "nll"]
        for number, logits, y in _answers(model, found):
            shifted = logits - logits.max(axis=1, keepdims=True)
            logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            best = logs.argmax(axis=1)
            for step, (place, target) in enumerate(zip(best, y, strict=True)):
                known = has_targets and target != NO_TARGET
                said = [model.labels[place], np.float32(np.exp(logs[step, place]))]
                came = [model.labels[target], np.float32(-logs[step, target])] if known else ["", ""]
                rows.append([number, step, *said, *came])
        return columns, rows
    if model.output == "bernoulli":
        columns = ["id", "step", *(f"probability_{label}" for label in model.labels)]
        for number, logits, _ in _answers(model, found):
            shares = (1 / (1 + np.exp(-logits))).astype(np.float32)
            rows += [[number, step, *share] for step, share in enumerate(shares)]
        return columns, rows
    columns = ["id", "step", *(f"mean_{target}" for target in model.targets)]
    for number, mean, _ in _answers(model, found):
        rows += [[number, step, *values] for step, values in enumerate(mean.astype(np.float32))]
    return columns, rows


def _answers(model: Target, found: StepFile) -> Iterator[tuple[int, Array, Array]]:
    """Each sequence's number, its answers in float64, and its targets."""
    import numpy as np

    from stablernn.training.evaluation.evaluate_predict_next import follow

    steps = found.steps
    outputs = len(model.labels or model.targets)
    parts: dict[int, list[Array]] = {}
    # Not in parallel streams: each sequence is read as it stands in the file, from its beginning.
    for part, answers in follow(model.predictor, steps, outputs, continuous=False):
        for row, length, answer in zip(part.rows, part.lengths, answers, strict=True):
            parts.setdefault(int(row), []).append(answer[:length].astype(np.float64))
    for number in sorted(parts):
        yield number, np.concatenate(parts[number]), steps.targets[number]
