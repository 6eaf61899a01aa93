"""The predictions of a model for one file, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stablernn_cli.config_options import flag
from stablernn_cli.errors import UsageError
from stablernn_cli.options import Stamps
from stablernn_cli.output import count_of, drop_none
from stablernn_cli.prediction_files import PredictionWriter, Table, as_series
from stablernn_cli.targets import Target

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stablernn.data import InputSet
    from stablernn.data.arrays import Samples
    from stablernn.data.readers.stepwise import StepFile
    from stablernn.training.evaluation.predictors import Predictor

    Array = npt.NDArray[Any]

_REPORTED_NOTES = (
    "ignored_columns",
    "gap_steps_filled",
    "short_contexts",
    "future_values_missing",
    "future_rows_unused",
)
"""Counts of reading a file that are printed."""
MAX_STEPS = 1_000_000
"""Steps above which a sequence that is longer than most is not answered: all would be padded to its length."""
_MOST_READINGS = 20
"""Times that a file is read to leave out series that are at fault; all with the same fault are found at once."""
STRETCHES = 10
"""Parts of a series that an explanation leaves out, one after the other."""
_DRAWN_SERIES = 6
_LEAST_ROWS, _MOST_ROWS = 256, 1024
_MOST_STEPS = 1 << 16
"""Steps of a run with more than the least rows."""


@dataclass(frozen=True)
class FileOptions:
    """Options of reading and answering a file, where it differs from the training data.

    Attributes:
        horizon: Steps to forecast; None for all that the model was trained for.
        id_column: Column of a table that identifies the series; None for that of training.
        time_column: Column of timestamps; likewise.
        stamps: Meaning of whole numbers as times; likewise.
        repairs: Repairs of tables, ``data.sort=true`` and the like.
    """

    horizon: int | None = None
    id_column: str | None = None
    time_column: str | None = None
    stamps: Stamps | None = None
    repairs: tuple[str, ...] = ()

    def of_table(self) -> dict[str, str | None]:
        """Return the options of :func:`stablernn.data.read_inputs` for tables."""
        return {"id_column": self.id_column, "time_column": self.time_column, "stamps": self.stamps}

    def document(self) -> dict[str, Any]:
        """Return them as JSON types."""
        return {**asdict(self), "repairs": list(self.repairs)}


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model for one file.

    Attributes:
        table: The predictions, columns by name.
        samples: Number of sequences or series in the file.
        notes: Counts of reading the file.
        errors: Why a series has no answer, by its name.
    """

    table: Table
    samples: int
    notes: Mapping[str, Any]
    errors: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.table.values())))


def predict_file(
    model: Target,
    source: str,
    options: FileOptions,
    *,
    exclude: Mapping[str, str] | None = None,
    max_steps: int | None = None,
) -> Predictions:
    """Return the predictions of a model for a file.

    Args:
        model: The model.
        source: File of sequences, series or steps.
        options: How the file is read and answered.
        exclude: Names of series of a table to leave out, each with the reason.
        max_steps: Set to look for series of a table that are at fault: steps above which one that is longer than most
            is refused, as are series without any value.

    Raises:
        UsageError: If an option does not fit the model or the file.
        stablernn.errors.DataError: If the file cannot be used.
    """
    model = with_file_options(model, source, options)
    steps = forecast_steps(model, options.horizon)
    if model.task == "simulate":
        return simulate_file(model, source)
    if model.task == "predict-next":
        _reject_table_options(options.of_table())
        file = read_step_file(model, source)
        return Predictions(step_table(model, file), len(file.steps), file.notes)
    inputs = _read(model, source, options, {"exclude": exclude, "max_steps": max_steps})
    if max_steps is None:
        return predict_inputs(model, inputs, steps)
    return predict_sound_inputs(model, source, inputs, steps)


def with_file_options(model: Target, source: str, options: FileOptions) -> Target:
    """Return a model whose settings of data are those of a file: its repairs, and the names of its columns.

    Raises:
        As :meth:`Target.with_repairs`.
    """
    from stablernn.data.files import is_table
    from stablernn.data.options import ID_COLUMN, TIME_COLUMN

    model = model.with_repairs(source, options.repairs)
    columns = {"id_column": ID_COLUMN, "time_column": TIME_COLUMN}
    if is_table(source):
        columns = drop_none({"id_column": options.id_column, "time_column": options.time_column})
    data = model.config.data.model_copy(update=columns)
    return replace(model, config=model.config.model_copy(update={"data": data}))


def column_names(model: Target, default: str) -> tuple[str, str]:
    """Return the names of the columns of series and times in answers: those of the file.

    Args:
        model: With the options of the file.
        default: Name of the column of series where the file has none of its own.
    """
    from stablernn.data.options import ID_COLUMN, TIME_COLUMN

    data = model.config.data
    names = [default if data.id_column == ID_COLUMN else data.id_column, data.time_column]
    # Columns of answers keep their names.
    answers = ("target", "mean", "label", "predicted", "actual", "origin", "error")
    is_taken = [name in answers or name.startswith(("probability_", "q0.")) for name in names]
    return default if is_taken[0] else names[0], TIME_COLUMN if is_taken[1] else names[1]


def predict_sound_inputs(model: Target, source: str, inputs: InputSet, steps: int | None) -> Predictions:
    """Return the predictions for inputs, as :func:`predict_inputs` does, if all series can be answered.

    Raises:
        stablernn.errors.DataError: If some cannot; it names all of them that have the same fault.
    """
    import numpy as np

    from stablernn.errors import DataError
    from stablernn_runtime.errors import InputError

    _refuse_empty_series(source, inputs)
    try:
        return predict_inputs(model, inputs, steps)
    except InputError as error:
        rows = _rows_of_a_run(model, inputs)
        batches = (np.arange(start, min(start + rows, len(inputs))) for start in range(0, len(inputs), rows))
        raise DataError(str(error), series=_find_failing(model.predictor, inputs, batches)) from error


def predict_series(model: Target, source: str, options: FileOptions, *, strict: bool = False) -> Predictions:
    """Return the predictions for a file in which series that are at fault do not cost the others their answers.

    Args:
        model: The model.
        source: As :func:`predict_file`.
        options: Likewise.
        strict: Whether the first series at fault costs all others their answers.

    Returns:
        The predictions, whose table has the column ``error`` as the last one: rows without an answer, at the end, have
        the name of a series and the reason.

    Raises:
        UsageError: If an option does not fit the model or the file.
        stablernn.errors.DataError: If the file cannot be used, or none of its series can.
    """
    from stablernn.data.files import is_table

    # Other files have no names by which a sequence could be left out.
    if not is_table(source):
        predictions = predict_file(model, source, options)
        return replace(predictions, table=with_errors(predictions.table, {}))
    predictions, faults = leave_out_faulty(
        lambda exclude: predict_file(model, source, options, exclude=exclude, max_steps=MAX_STEPS), strict=strict
    )
    return replace(predictions, table=with_errors(predictions.table, faults), errors=faults)


def leave_out_faulty(
    predict: Callable[[Mapping[str, str]], Predictions], *, strict: bool = False
) -> tuple[Predictions, dict[str, str]]:
    """Return predictions, and why some series are left out of them.

    Args:
        predict: Returns the predictions without series of these names, each with the reason.
        strict: Whether the first series at fault costs all others their answers.

    Raises:
        stablernn.errors.DataError: If ``predict`` does for another reason than a series, or leaving it out is no help.
    """
    from stablernn.errors import DataError

    faults: dict[str, str] = {}
    readings = 0
    while True:
        readings += 1
        try:
            return predict(faults), faults
        except DataError as error:
            # What is at fault although it was left out does not depend on the series.
            if strict or not error.series or not set(error.series).isdisjoint(faults) or readings == _MOST_READINGS:
                raise
            faults |= error.series


def with_errors(table: Table, faults: Mapping[str, str]) -> Table:
    """Return a table with a row for each series without an answer, and the column of reasons."""
    import polars as pl

    columns = {name: as_series(name, values) for name, values in table.items()}
    if not faults:
        return {**columns, "error": pl.repeat(None, len(next(iter(columns.values()))), dtype=pl.String, eager=True)}
    (names, ids), *others = columns.items()
    reasons = pl.repeat(None, len(ids), dtype=pl.String, eager=True).extend(pl.Series(faults.values(), dtype=pl.String))
    return {
        names: ids.extend(pl.Series(list(faults), dtype=pl.String)),
        **{name: values.extend_constant(None, len(faults)) for name, values in others},
        "error": reasons,
    }


def _reject_table_options(table_options: Mapping[str, str | None]) -> None:
    for option, value in table_options.items():
        if value is not None:
            raise UsageError(f"{flag(option)} is for tables of series, got '{value}'. Leave it out.")


def _read(model: Target, source: str, options: FileOptions, limits: Mapping[str, Any]) -> InputSet:
    """Read a file for a classification or a forecast."""
    from stablernn.data import read_inputs
    from stablernn.data.files import is_table

    # Other files have no columns to name.
    if not is_table(source):
        _reject_table_options(options.of_table())
        limits = {}
    inputs = read_inputs(source, **reading_options(model, options), **limits)
    model.check_sample_rate(source, inputs.notes)
    return inputs


def predict_inputs(model: Target, inputs: InputSet, steps: int | None) -> Predictions:
    """Return the predictions of a classification or a forecast.

    Args:
        model: The model.
        inputs: What the series hold.
        steps: Steps to forecast; None for a classification.
    """
    from stablernn.training import predict as run

    outputs = run(model.predictor, inputs, batch_size=_rows_of_a_run(model, inputs))
    table = (
        _forecast_table(model, inputs, outputs, steps)
        if steps is not None
        else _class_table(model, inputs, outputs["probabilities"])
    )
    return Predictions(table, len(inputs), inputs.notes)


def explain_file(model: Target, source: str, options: FileOptions, folder: Path) -> list[str]:
    """Write ``explanation.csv`` and ``explanation.png``: contributions of each channel and stretch of time to answers.

    A stretch of one channel is left out as missing values are. Its contribution is what the probability of the answer
    loses by that, or the mean absolute change of the mean forecast, in units of the targets (Zeiler and Fergus,
    "Visualizing and understanding convolutional networks", ECCV 2014, section 4.2: occlusion).

    Args:
        model: The model, of the task ``classify`` or ``forecast``.
        source: As :func:`predict_file`.
        options: Likewise.
        folder: Folder of both files; it is created.

    Returns:
        The paths of the files.

    Raises:
        UsageError: If the model answers at every step, or an option does not fit it.
        stablernn.errors.DataError: If the file cannot be used.
    """
    import numpy as np

    from stablernn.plotting import plot_contributions

    if model.task in ("predict-next", "simulate"):
        raise UsageError(f"--explain is for classifications and forecasts, and {model.name} answers at every step.")
    model = model.with_repairs(source, options.repairs)
    steps = forecast_steps(model, options.horizon)
    inputs = _read(model, source, options, {})
    # (samples, stretches + 1): the first step of each stretch, and the end of the last.
    bounds = np.arange(STRETCHES + 1) * inputs.lengths[:, None] // STRETCHES
    answers, contributions = _contributions(model, inputs, bounds, steps)
    rows, stretches, channels = (index.ravel() for index in np.indices(contributions.shape))
    # A series of fewer steps than stretches has empty ones.
    is_held = bounds[rows, stretches + 1] > bounds[rows, stretches]
    rows, stretches, channels = rows[is_held], stretches[is_held], channels[is_held]
    table: dict[str, Any] = {
        "id": [inputs.ids[row] for row in rows],
        **({} if answers is None else {"label": [model.labels[answers[row]] for row in rows]}),
        "feature": [model.features[channel] for channel in channels],
        "first_step": bounds[rows, stretches] + 1,
        "last_step": bounds[rows, stretches + 1],
        "contribution": contributions[rows, stretches, channels],
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "explanation.csv", folder / "explanation.png"]
    with PredictionWriter(paths[0]) as writer:
        writer.add(table)
        writer.commit()
    titles = [
        f"series {inputs.ids[row]}"
        if answers is None
        else f"sequence {inputs.ids[row]}, answer {model.labels[answers[row]]}"
        for row in range(min(_DRAWN_SERIES, len(inputs)))
    ]
    values = [inputs.x[row, : inputs.lengths[row]] for row in range(len(titles))]
    unit = "change of the forecast" if answers is None else "lost probability"
    plot_contributions(paths[1], values, contributions, bounds, model.features, titles=titles, unit=unit)
    return [str(path) for path in paths]


@dataclass(frozen=True)
class _Occluded:
    """Inputs of which a stretch of one channel is missing."""

    inputs: InputSet
    channel: int
    first: Array
    last: Array

    def __len__(self) -> int:
        return len(self.inputs)

    def gather(self, indices: Array) -> Samples:
        import numpy as np

        samples = self.inputs.gather(indices)
        step = np.arange(samples.x.shape[1])
        x = samples.x.copy()
        x[(step >= self.first[indices, None]) & (step < self.last[indices, None]), self.channel] = np.nan
        return samples._replace(x=x)


def _contributions(
    model: Target, inputs: InputSet, bounds: Array, steps: int | None
) -> tuple[npt.NDArray[np.int64] | None, Array]:
    """Return the answered classes, None for forecasts, and contributions (samples, stretches, channels)."""
    import numpy as np

    from stablernn.training import predict as run

    rows = _rows_of_a_run(model, inputs)
    whole = run(model.predictor, inputs, batch_size=rows)
    answers = None if steps is not None else whole["probabilities"].argmax(axis=1)
    contributions = np.empty((len(inputs), bounds.shape[1] - 1, inputs.x.shape[2]))
    for stretch in range(bounds.shape[1] - 1):
        for channel in range(inputs.x.shape[2]):
            source = _Occluded(inputs, channel, bounds[:, stretch], bounds[:, stretch + 1])
            outputs = run(model.predictor, source, batch_size=rows)
            if answers is None:
                change = np.abs(outputs["mean"][:, :steps] - whole["mean"][:, :steps]).mean(axis=(1, 2))
            else:
                numbers = np.arange(len(inputs))
                change = whole["probabilities"][numbers, answers] - outputs["probabilities"][numbers, answers]
            contributions[:, stretch, channel] = change
    return answers, contributions


def _refuse_empty_series(source: str, inputs: InputSet) -> None:
    """Refuse series without any value, for which a graph has the answer that fits all series best."""
    import numpy as np

    from stablernn.errors import raise_for_series

    if inputs.notes.get("missing_values") == 0:
        return
    # Padding is 0, and not missing.
    missing = np.isnan(inputs.x).all(axis=2).sum(axis=1) == inputs.lengths
    raise_for_series(
        {
            inputs.ids[number]: f"'{Path(source).name}': all values of series '{inputs.ids[number]}' are missing."
            for number in np.flatnonzero(missing)
        }
    )


def _find_failing(predictor: Predictor, inputs: InputSet, batches: Iterable[Array]) -> dict[str, str]:
    """Return why some series cannot be answered, of those with these numbers, by halving until one is left."""
    import numpy as np

    from stablernn.training.evaluation.predictors import optional_inputs
    from stablernn_runtime.errors import InputError

    failing: dict[str, str] = {}
    for numbers in batches:
        samples = inputs.gather(numbers)
        try:
            predictor.run_numpy(samples.x, samples.lengths, **optional_inputs(samples))
        except InputError as error:
            if len(numbers) == 1:
                failing[inputs.ids[numbers[0]]] = str(error)
            else:
                failing |= _find_failing(predictor, inputs, np.array_split(numbers, 2))
    return failing


def _rows_of_a_run(model: Target, inputs: InputSet) -> int:
    """Return how many sequences are run at once: many short ones, which is faster, and fewer long ones."""
    # Only of ONNX Runtime on the CPU answers do not depend on it.
    if (model.engine, model.device) != ("onnx", "cpu"):
        return _LEAST_ROWS
    steps: int = inputs.x.shape[1]
    return max(_LEAST_ROWS, min(_MOST_STEPS // steps, _MOST_ROWS))


def forecast_steps(model: Target, horizon: int | None) -> int | None:
    """Return the number of steps to forecast; None for other tasks."""
    if model.horizon is None:
        if horizon is not None:
            purpose = "classifies" if model.task == "classify" else "answers at every step"
            raise UsageError(f"--horizon is for forecasts, and {model.name} {purpose}. Leave it out.")
        return None
    # Fewer steps are the first ones of the whole forecast.
    if horizon is None:
        return model.horizon
    if not 1 <= horizon <= model.horizon:
        raise UsageError(
            f"--horizon must be from 1 to {model.horizon}, the steps that {model.name} was trained for, got {horizon}. "
            f"Train with a longer --horizon for more."
        )
    return horizon


def reading_options(model: Target, options: FileOptions) -> dict[str, Any]:
    """Return the options of :func:`stablernn.data.read_inputs`: those of a file, else those of the training data."""
    data = model.config.data
    columns = {
        "task": model.task,
        "features": model.features,
        "context_length": model.context_length,
        "time_step": model.config.model.time_step,
        "id_column": data.id_column,
        "time_column": data.time_column,
        "stamps": data.stamps,
        "repairs": data.repairs,
        **drop_none(options.of_table()),
    }
    if model.task == "classify":
        return {**columns, "label_column": data.label_column}
    return {
        **columns,
        "frequency": model.frequency,
        "future": data.future,
        "static": data.static,
        "calendar": data.calendar,
        "horizon": model.horizon,
        "targets": model.targets,
        "channels_as_series": data.channels_as_series,
    }


def _class_table(model: Target, inputs: InputSet, probabilities: Array) -> Table:
    from stablernn_runtime.scoring.scorer import class_columns

    return {column_names(model, "id")[0]: inputs.ids, **class_columns(model.labels, probabilities)}


def _forecast_table(model: Target, inputs: InputSet, outputs: dict[str, Array], steps: int) -> Table:
    from stablernn_runtime.scoring.scorer import forecast_columns

    targets = len(model.targets)
    in_utc = inputs.notes.get("time_zone") == "UTC"
    stamps = [format_times(inputs.future_ds(number, steps), in_utc) for number in range(len(inputs.ids))]
    id_name, time_name = column_names(model, "unique_id")
    return {
        id_name: [name for name in inputs.ids for _ in range(targets * steps)],
        time_name: [stamp for times in stamps for _ in range(targets) for stamp in times],
        **forecast_columns(
            model.targets, model.quantiles, {name: values[:, :steps] for name, values in outputs.items()}
        ),
    }


def format_times(ds: npt.NDArray[np.datetime64] | npt.NDArray[np.int64], in_utc: bool) -> Sequence[int | str]:
    """Format timestamps as in files: dates if none has a time of day; with a Z if they are in UTC."""
    import numpy as np

    # Series whose times are whole numbers.
    if ds.dtype.kind != "M":
        return [int(step) for step in ds]
    stamps = ds.astype("datetime64[ns]")
    unit: Literal["D", "s", "ns"] = "ns"
    if not in_utc and (stamps == stamps.astype("datetime64[D]")).all():
        unit = "D"
    elif (stamps == stamps.astype("datetime64[s]")).all():
        unit = "s"
    return [f"{text}Z" if in_utc else str(text) for text in np.datetime_as_string(stamps, unit=unit)]


def describe_notes(notes: Mapping[str, Any]) -> Iterator[str]:
    """Yield how a file was read, what was repaired, and what was filled or ignored."""
    from stablernn.data.messages import data_counts, describe_reading, format_counts, repair_counts

    reading, repairs = describe_reading(notes), repair_counts(data_counts(notes))
    if reading:
        yield f"read as {reading}"
    if repairs:
        yield f"repaired: {format_counts(repairs)}"
    if "read_whole" in notes:
        yield f"read as a whole, not in pieces: {notes['read_whole']}"
    for name, count in notes.get("beyond_training", {}).items():
        yield f"{count_of(count, 'sample')} of the input '{name}' beyond the range of training, where nothing is known"
    for name, count in notes.items():
        if name in _REPORTED_NOTES and count:
            yield f"{name.replace('_', ' ')}: {count}"


def simulate_file(model: Target, source: str) -> Predictions:
    """Return the outputs of a machine simulated from a file of its inputs, with a row for each sample.

    Raises:
        stablernn.errors.UnknownNameError: If the file lacks an input.
        stablernn.errors.DataError: If it cannot be used, or its sampling time is not that of training.
    """
    import numpy as np

    from stablernn.data.experiments import count_beyond, read_experiments
    from stablernn.training.evaluation.predictors import predict_steps

    pool = read_experiments(Path(source), model.config.data)
    model.check_sample_rate(source, {"sample_time": pool.sample_time})
    outputs = np.concatenate(predict_steps(model.predictor, pool.records(), len(model.targets))).astype(np.float32)
    experiments = pool.experiments
    table: dict[str, Any] = {}
    if pool.id_column is not None or len(experiments) > 1:
        names = [each.name for each in experiments for _ in each.inputs]
        table[pool.id_column or "experiment"] = names
    if pool.time_column is None:
        table["step"] = np.concatenate([np.arange(len(each.inputs)) for each in experiments])
    else:
        table[pool.time_column] = np.concatenate([each.seconds for each in experiments if each.seconds is not None])
    table |= {target: outputs[:, index] for index, target in enumerate(model.targets)}
    beyond = count_beyond(pool, model.input_range) if model.input_range else {}
    return Predictions(table, len(experiments), {**pool.notes, "beyond_training": beyond})


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
    from stablernn.training.evaluation.predictors import predict_steps

    # Not cut into parallel streams: each sequence is run from its beginning, as in the file.
    answers = predict_steps(model.predictor, file.steps, len(model.labels or model.targets))
    yield from zip(range(len(answers)), answers, file.steps.targets, strict=True)
