"""`stablernn predict` for the task predict-next: a text or sequences in, a row for each step out."""

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


def read_step_file(model: Target, source: str) -> StepFile:
    """Read the sequences of a file, in the model's vocabulary or channels.

    Raises:
        stablernn.errors.DataError: If the file does not contain sequences, or does not fit the model.
    """
    from stablernn.data.readers.stepwise import read_steps, require_step_file
    from stablernn.errors import DataError

    file = read_steps(require_step_file(Path(source)), model.features, for_model=True)
    if file.tokens != model.takes_tokens:
        kinds = ("numbers", "tokens")
        raise DataError(
            f"'{file.name}' contains {kinds[file.tokens]}, {model.name} expects {kinds[model.takes_tokens]}."
        )
    outputs = len(model.labels or model.targets)
    # Fewer outputs than the model has are fine: classes may be missing from a file.
    if file.has_targets and (file.output != model.output or len(file.outputs) > outputs):
        raise DataError(
            f"'{file.name}' has targets for {len(file.outputs)} outputs ({file.output}), {model.name} has "
            f"{outputs} ({model.output}). Remove 'y' to get predictions only."
        )
    return file


def step_table(model: Target, file: StepFile) -> dict[str, list[Any]]:
    """Return a table with a row for each step.

    A row has the most likely class and its probability, or the probability of each binary output, or each number.
    Classes are followed by the actual one, ``target``, and its ``nll`` in nats, both missing where the file has none.
    """
    columns, rows = _step_rows(model, file)
    return {name: [row[number] for row in rows] for number, name in enumerate(columns)}


def _step_rows(model: Target, file: StepFile) -> tuple[list[str], Rows]:
    import numpy as np

    from stablernn.data.step_data import NO_TARGET

    rows: Rows = []
    # Where outputs are the inputs one step on, as in a text, the file itself has the targets.
    has_targets = file.has_targets or model.labels == model.features
    if model.output == "categorical":
        columns = ["id", "step", "label", "probability", "target", "nll"]
        for number, logits, y in _predict(model, file):
            # log softmax, shifted by the largest logit so that exp cannot overflow; (steps, classes).
            shifted = logits - logits.max(axis=1, keepdims=True)
            logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            best = logs.argmax(axis=1)
            for step, (predicted, target) in enumerate(zip(best, y, strict=True)):
                has_target = has_targets and target != NO_TARGET
                prediction = [model.labels[predicted], np.float32(np.exp(logs[step, predicted]))]
                actual = [model.labels[target], np.float32(-logs[step, target])] if has_target else [None, None]
                rows.append([number, step, *prediction, *actual])
        return columns, rows
    if model.output == "bernoulli":
        columns = ["id", "step", *(f"probability_{label}" for label in model.labels)]
        for number, logits, _ in _predict(model, file):
            # Independent outputs: a sigmoid for each, (steps, outputs).
            probabilities = (1 / (1 + np.exp(-logits))).astype(np.float32)
            rows += [[number, step, *values] for step, values in enumerate(probabilities)]
        return columns, rows
    columns = ["id", "step", *(f"mean_{target}" for target in model.targets)]
    for number, mean, _ in _predict(model, file):
        rows += [[number, step, *values] for step, values in enumerate(mean.astype(np.float32))]
    return columns, rows


def _predict(model: Target, file: StepFile) -> Iterator[tuple[int, Array, Array]]:
    """Yield the number of each sequence, its outputs in float64, (steps, outputs), and its targets, (steps,)."""
    import numpy as np

    from stablernn.training.evaluation.stepwise import predict_segments

    steps = file.steps
    outputs = len(model.labels or model.targets)
    parts: dict[int, list[Array]] = {}
    # Not cut into parallel streams: each sequence is run from its beginning, as in the file.
    # The stretches of the sequences of a batch come interleaved.
    for part, answers in predict_segments(model.predictor, steps, outputs, continuous=False):
        for row, length, answer in zip(part.rows, part.lengths, answers, strict=True):
            parts.setdefault(int(row), []).append(answer[:length].astype(np.float64))
    for number in sorted(parts):
        yield number, np.concatenate(parts[number]), steps.targets[number]
