"""A version that is opened where it is used, and that answers tables and steps of many streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import Registry, RegistryError, Version
from stablernn_runtime.calendar import day_zone
from stablernn_runtime.covariates import observed_features
from stablernn_runtime.engines.session import Device
from stablernn_runtime.errors import InputError, ModelLoadError
from stablernn_runtime.run_batch import run_steps
from stablernn_runtime.scoring.columns import class_columns, forecast_columns
from stablernn_runtime.scoring.sequences import Sequences, read_sequences
from stablernn_runtime.scoring.times_ahead import times_ahead
from stablernn_runtime.served_model import ServedModel

if TYPE_CHECKING:
    import polars as pl

Array = NDArray[Any]

BATCH_ROWS = 256
"""Sequences that are run at once. Answers do not depend on it."""
_RETRY_SECONDS = 1.0
_opening = threading.Lock()


@dataclass(frozen=True)
class Scorer:
    """A reference to a version, which each process opens when it first scores.

    It pickles into a few hundred bytes, so that engines send it to their workers. The version is fixed by its digest:
    an alias that moves afterwards moves nothing here, and a process that finds other files refuses them.

    Attributes:
        registry: Folder of the registry, absolute, at the same place on all machines.
        model: ``NAME:VERSION``.
        digest: ``sha256:...`` of the version.
        device: Device to compute on. Answers have the same bits everywhere on a CPU of one kind.
        engine: Name of the engine that runs the graphs.
        wait_seconds: Seconds for which a registry that cannot be read is tried again.
    """

    registry: str
    model: str
    digest: str
    device: Device = "cpu"
    engine: str = "onnx"
    wait_seconds: float = 60.0

    @classmethod
    def find(
        cls,
        model: str,
        *,
        registry: str | Path | None = None,
        device: Device = "cpu",
        engine: str = "onnx",
        wait_seconds: float = 60.0,
    ) -> Self:
        """Return the scorer of a version.

        Args:
            model: ``NAME``, ``NAME:VERSION`` or ``NAME@ALIAS``, which is looked up once, here.
            registry: Folder of the registry; None for that of the command line, ``STABLERNN_REGISTRY``.
            device: See :class:`Scorer`.
            engine: Likewise.
            wait_seconds: Likewise.

        Raises:
            RegistryError: If the registry has no such version, or cannot be read for ``wait_seconds``.
        """
        root = Registry(registry).root
        version = _wait_for(root, model, wait_seconds)
        return cls(str(root), version.ref, version.digest, device, engine, wait_seconds)

    def open(self) -> ServedModel:
        """Return the opened version, the same in all calls of a process. It runs on one thread.

        Raises:
            RegistryError: If the registry has no such version, or cannot be read for ``wait_seconds``.
            ModelLoadError: If it is another version than this one, or it cannot be run.
        """
        # Two threads would open it twice.
        with _opening:
            return _open(self)

    def score(
        self,
        table: Any,
        *,
        id_column: str | None = None,
        time_column: str | None = None,
        most_steps: int = 1_000_000,
    ) -> pl.DataFrame:
        """Return the answers for the sequences of a table, in the order of their first rows.

        Steps are taken to be one regular step apart. Versions that read the time between steps, or values beside the
        series, are refused: ``stablernn predict`` answers these.

        Args:
            table: Anything that ``polars.DataFrame`` takes: Arrow tables and batches, frames of polars and pandas,
                mappings of columns. It has a row for each sequence, with a list for each feature, or a row for each
                step, with a number for each feature; empty cells are missing values. Other columns are ignored.
            id_column: Column that names the sequences; None for ``id``, or else ``unique_id``.
            time_column: Column by which steps are sorted where each has a row; None for their order in the table. A
                forecast goes on from its times, which are dates, datetimes or integers one step apart.
            most_steps: Steps above which a sequence is not answered.

        Returns:
            The columns that ``stablernn predict`` names, with the column ``error`` as the last one: why a sequence has
            no answer, which is null in all other columns then. A class has a row for each sequence. A forecast has one
            for each step, with its time in ``time_column``, or its number from 1 on in ``step`` where there are no
            times, and a sequence without an answer has one.

        Raises:
            InputError: If the table lacks a column, or the version does not answer tables.
            RegistryError: As :meth:`open`.
            ModelLoadError: As :meth:`open`.
        """
        model = self.open()
        _check_inputs(model)
        manifest = model.manifest
        sequences = read_sequences(
            table,
            manifest.features,
            id_column=id_column,
            time_column=time_column,
            most_steps=most_steps,
            last_steps=manifest.context_length if manifest.task == "forecast" else None,
        )
        numbers, parts = [], []
        times: pl.Series | None = None
        if manifest.task == "forecast" and sequences.times is not None:
            times, irregular = times_ahead(
                sequences.times, manifest.horizon or 1, manifest.frequency, day_zone(manifest)
            )
            sequences = replace(sequences, errors={**irregular, **sequences.errors})
        errors = dict(sequences.errors)
        for batch in sequences.batches(BATCH_ROWS):
            for answered, outputs in _run(model, sequences, batch, errors):
                numbers.append(answered)
                parts.append(outputs)
        rows = np.concatenate(numbers) if numbers else np.zeros(0, np.int64)
        order = np.argsort(rows)
        outputs = {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]} if parts else {}
        return _answers(model, sequences, rows[order], outputs, errors, times)

    def advance(
        self, samples: Array, states: Mapping[str, Array] | None = None, **other_inputs: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Advance many streams by one sample each.

        Args:
            samples: ``(streams, features)`` in raw units, NaN where a value is missing; ``(streams,)`` of tokens, and
                ``(streams, stride, features)`` of a model of patches.
            states: States of the streams by the name of the input, ``(streams, ...)``; None for new streams.
            other_inputs: ``dt`` and the like, as :meth:`ServedModel.run_step` takes them.

        Returns:
            The answers by name, ``(streams, ...)``, and the states after the samples. Both have the bits that each
            stream would have alone.

        Raises:
            InputError: If a shape or a value does not fit, or an answer is not finite.
            RegistryError: As :meth:`open`.
            ModelLoadError: As :meth:`open`.
        """
        model = self.open()
        inputs = {model.input_name: samples, **other_inputs}
        steps = {name: value if name == "static" else np.asarray(value)[:, None] for name, value in inputs.items()}
        (result,) = run_steps(model.step, [model.prepare_steps(steps, states or {})], None)
        if isinstance(result, InputError):
            raise result
        return {name: value[:, 0] for name, value in result.outputs.items()}, dict(result.states)


def _wait_for(root: Path, model: str, wait_seconds: float) -> Version:
    """Return a version as soon as its registry can be read.

    Raises:
        RegistryError: If there is no such version, or the registry cannot be read for so long.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return Registry(root).get(model)
        except (RegistryError, OSError) as error:
            # A registry that is there and does not have the version will not get it.
            is_away = isinstance(error, OSError) or not root.is_dir()
            left = deadline - time.monotonic()
            if not is_away or left <= 0:
                raise
            time.sleep(min(_RETRY_SECONDS, left))


@cache
def _open(scorer: Scorer) -> ServedModel:
    version = _wait_for(Path(scorer.registry), scorer.model, scorer.wait_seconds)
    if version.digest != scorer.digest:
        raise ModelLoadError(
            f"'{scorer.model}' in {scorer.registry} is {version.digest}, and the job began with {scorer.digest}. Give "
            "all workers the same registry."
        )
    return ServedModel.load(version, scorer.device, threads=1, engine=scorer.engine)


def _check_inputs(model: ServedModel) -> None:
    """Refuse a model that reads more than regular series, or does not answer whole ones.

    Raises:
        InputError: If it is one.
    """
    manifest = model.manifest
    if manifest.task not in ("classify", "forecast"):
        raise InputError(f"{model.label} answers at every step: use advance(), or 'stablernn predict' on a file.")
    extra: list[str] = [name for name in ("static", "future", "dt") if name in model.sequence.inputs]
    if len(observed_features(manifest)) < len(manifest.features or ()):
        extra.append("the calendar")
    if extra:
        raise InputError(
            f"{model.label} reads {' and '.join(extra)} beside the series, which a scorer does not fill in: use "
            "'stablernn predict'."
        )


def _run(
    model: ServedModel, sequences: Sequences, numbers: Array, errors: dict[int, str]
) -> Iterator[tuple[Array, dict[str, Array]]]:
    """Yield the numbers of sequences that were answered, with their outputs; errors of others are added."""
    x, lengths = sequences.gather(numbers)
    try:
        yield numbers, model.run_numpy(x, lengths)
    except InputError as error:
        # The fault of one must not cost the others their answers.
        if len(numbers) == 1:
            errors[int(numbers[0])] = str(error)
            return
        for half in np.array_split(numbers, 2):
            yield from _run(model, sequences, half, errors)


def _answers(
    model: ServedModel,
    sequences: Sequences,
    rows: Array,
    outputs: Mapping[str, Array],
    errors: Mapping[int, str],
    times: pl.Series | None,
) -> pl.DataFrame:
    """Return the table of answers for the sequences ``rows``, and the reasons of all others.

    Args:
        times: Times of the steps of each forecast, lists; None to number the steps.
    """
    import polars as pl

    manifest = model.manifest
    if manifest.task == "classify":
        name, rows_of_each = "id", 1
        labels = list(manifest.labels or ())
        columns = class_columns(labels, outputs.get("probabilities", np.zeros((0, len(labels)), np.float32)))
    else:
        name, steps, targets = "unique_id", manifest.horizon or 1, list(manifest.targets or ())
        rows_of_each = steps * len(targets)
        columns = _step_columns(rows, steps, len(targets), times)
        columns |= forecast_columns(targets, manifest.quantiles or [], outputs or _no_forecasts(model))
    types: dict[str, Any] = {"label": pl.String(), "target": pl.String(), "step": pl.Int64()}
    if times is not None:
        types[times.name] = columns[times.name].dtype
    schema = {column: types.get(column, pl.Float32()) for column in columns}
    failed = sorted(errors)
    reasons = pl.DataFrame({"error": [errors[number] for number in failed]}, schema={"error": pl.String()})
    # Sequences without an answer have a row of empty cells.
    table = pl.concat([pl.DataFrame(columns, schema=schema), reasons], how="diagonal")
    numbers = np.concatenate([np.repeat(rows, rows_of_each), np.array(failed, np.int64)])
    order = np.argsort(numbers, kind="stable")
    ids = sequences.ids.gather(numbers[order]).alias(name)
    return table[order].select(ids, *schema, "error")


def _step_columns(rows: Array, steps: int, targets: int, times: pl.Series | None) -> dict[str, Any]:
    """Return the column of the times or numbers of steps, for each sequence, target and step in this order."""
    if times is None:
        return {"step": np.tile(np.arange(1, steps + 1), len(rows) * targets)}
    return {times.name: times.gather(np.repeat(rows, targets)).explode()}


def _no_forecasts(model: ServedModel) -> dict[str, Array]:
    manifest = model.manifest
    shape = (0, manifest.horizon or 1, len(manifest.targets or ()))
    return {
        "mean": np.zeros(shape, np.float32),
        "quantiles": np.zeros((*shape, len(manifest.quantiles or ())), np.float32),
    }
