"""The predictions of a model for one file, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from stablernn_cli.config_options import flag
from stablernn_cli.errors import UsageError
from stablernn_cli.options import Stamps
from stablernn_cli.output import drop_none
from stablernn_cli.prediction.files import Table
from stablernn_cli.prediction.steps import read_step_file, step_table
from stablernn_cli.targets import Target

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stablernn.data import InputSet

    Array = npt.NDArray[Any]


_REPORTED_NOTES = (
    "ignored_columns",
    "gap_steps_filled",
    "short_contexts",
    "future_values_missing",
    "future_rows_unused",
)
"""Counts of reading a file that are printed."""


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
    """

    table: Table
    samples: int
    notes: Mapping[str, Any]

    def __len__(self) -> int:
        return len(next(iter(self.table.values())))


def predict_file(model: Target, source: str, options: FileOptions) -> Predictions:
    """Return the predictions of a model for a file.

    Args:
        model: The model.
        source: File of sequences, series or steps.
        options: How the file is read and answered.

    Raises:
        UsageError: If an option does not fit the model or the file.
        stablernn.errors.DataError: If the file cannot be used.
    """
    model = model.with_repairs(source, options.repairs)
    steps = _forecast_steps(model, options.horizon)
    if model.task == "predict-next":
        _reject_table_options(options.of_table())
        file = read_step_file(model, source)
        return Predictions(step_table(model, file), len(file.steps), file.notes)
    return _predict_samples(model, source, steps, options.of_table())


def _reject_table_options(table_options: Mapping[str, str | None]) -> None:
    for option, value in table_options.items():
        if value is not None:
            raise UsageError(f"{flag(option)} is for tables of series, got '{value}'. Leave it out.")


def _predict_samples(
    model: Target, source: str, steps: int | None, table_options: Mapping[str, str | None]
) -> Predictions:
    """Return the predictions of a classification or a forecast."""
    from stablernn.data import read_inputs
    from stablernn.data.readers.paths import is_table
    from stablernn.training import predict as run

    # Other files have no columns to name.
    if not is_table(source):
        _reject_table_options(table_options)
    inputs = read_inputs(
        source,
        task=model.task,
        features=model.features,
        context_length=model.context_length,
        time_step=model.config.model.time_step,
        **_reading_options(model) | drop_none(table_options),
    )
    model.check_sample_rate(source, inputs.notes)
    outputs = run(model.predictor, inputs)
    table = (
        _forecast_table(model, inputs, outputs, steps)
        if steps is not None
        else _class_table(model, inputs, outputs["probabilities"])
    )
    return Predictions(table, len(inputs), inputs.notes)


def _forecast_steps(model: Target, horizon: int | None) -> int | None:
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


def _reading_options(model: Target) -> dict[str, Any]:
    """Return the options of :func:`stablernn.data.read_inputs` that the training data was read with."""
    data = model.config.data
    columns = {
        "id_column": data.id_column,
        "time_column": data.time_column,
        "stamps": data.stamps,
        "repairs": data.repairs,
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
    from stablernn_runtime.scoring.columns import class_columns

    return {"id": inputs.ids, **class_columns(model.labels, probabilities)}


def _forecast_table(model: Target, inputs: InputSet, outputs: dict[str, Array], steps: int) -> Table:
    from stablernn_runtime.scoring.columns import forecast_columns

    targets = len(model.targets)
    in_utc = inputs.notes.get("time_zone") == "UTC"
    stamps = [format_times(inputs.future_ds(number, steps), in_utc) for number in range(len(inputs.ids))]
    return {
        "unique_id": [name for name in inputs.ids for _ in range(targets * steps)],
        "ds": [stamp for times in stamps for _ in range(targets) for stamp in times],
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
    from stablernn.data.notes import data_counts, describe_reading, format_counts, repair_counts

    reading, repairs = describe_reading(notes), repair_counts(data_counts(notes))
    if reading:
        yield f"read as {reading}"
    if repairs:
        yield f"repaired: {format_counts(repairs)}"
    for name, count in notes.items():
        if name in _REPORTED_NOTES and count:
            yield f"{name.replace('_', ' ')}: {count}"
