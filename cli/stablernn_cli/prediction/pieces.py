"""The predictions for one file, written to another: in pieces of a large table, so that memory is that of a piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.prediction.answers import (
    MAX_STEPS,
    FileOptions,
    Predictions,
    forecast_steps,
    leave_out_faulty,
    predict_file,
    predict_inputs,
    predict_series,
    predict_sound_inputs,
    reading_options,
    with_errors,
    with_file_options,
)
from stablernn_cli.prediction.files import PredictionWriter, Table
from stablernn_cli.targets import Target

if TYPE_CHECKING:
    from stablernn.data.input_pieces import InputPiece, PieceCheck


@dataclass(frozen=True)
class FileSummary:
    """The counts of a file whose predictions a writer has.

    Attributes:
        samples: Number of sequences or series with an answer.
        notes: Counts of reading the file.
        errors: Why a series has no answer, by its name.
    """

    samples: int
    notes: Mapping[str, Any]
    errors: Mapping[str, str] = field(default_factory=dict)


def answer_file(
    model: Target,
    source: str,
    options: FileOptions,
    writer: PredictionWriter,
    *,
    has_errors: bool = False,
    strict: bool = False,
) -> FileSummary:
    """Write the predictions of a model for a file to a writer, which is not committed.

    Args:
        model: The model.
        source: File of sequences, series or steps.
        options: How the file is read and answered.
        writer: Gets the predictions; empty.
        has_errors: Whether series at fault cost no other its answer, and have rows with the reason, see
            :func:`predict_series`.
        strict: With ``has_errors``: whether the first series at fault costs all others their answers.

    Raises:
        UsageError: If an option does not fit the model or the file.
        CommandError: If the writer cannot write.
        stablernn.errors.DataError: If the file cannot be used, or none of its series can.
    """
    from stablernn.data.readers.table_pieces import NotInPieces

    try:
        return _answer_in_pieces(model, source, options, writer, has_errors=has_errors, strict=strict)
    except NotInPieces as error:
        reason = str(error)
    writer.clear()
    if has_errors:
        predictions = predict_series(model, source, options, strict=strict)
    else:
        predictions = predict_file(model, source, options)
    writer.add(predictions.table)
    notes = {**predictions.notes, **({"read_whole": reason} if reason else {})}
    return FileSummary(predictions.samples, notes, predictions.errors)


def _answer_in_pieces(
    model: Target, source: str, options: FileOptions, writer: PredictionWriter, *, has_errors: bool, strict: bool
) -> FileSummary:
    """Answer a table in pieces, with the bits that it has when it is read whole.

    Raises:
        NotInPieces: If it must be read whole.
    """
    from stablernn.data.input_pieces import PieceCheck, read_input_pieces
    from stablernn.data.readers.paths import is_table
    from stablernn.data.readers.row_checks import no_series_error
    from stablernn.data.readers.table_pieces import NotInPieces

    # Answers of other engines depend, in their last bits, on what is run together.
    if model.task == "predict-next" or not is_table(source) or (model.engine, model.device) != ("onnx", "cpu"):
        raise NotInPieces
    model = with_file_options(model, source, options)
    answers = _PieceAnswers(model, source, forecast_steps(model, options.horizon), PieceCheck(), has_errors, strict)
    reading = {**reading_options(model, options), "max_steps": MAX_STEPS if has_errors else None}
    last: Table = {}
    faults: dict[str, str] = {}
    samples, notes = 0, dict[str, Any]()
    for predictions in map(answers.predict, read_input_pieces(source, **reading)):
        faults |= predictions.errors
        if not predictions.samples:
            continue
        if last:
            writer.add(with_errors(last, {}) if has_errors else last)
        last = predictions.table
        samples += predictions.samples
        notes = _add_notes(notes, predictions.notes)
    if not last:
        raise no_series_error(Path(source).name, faults)
    # Series without an answer stand at the end of the file.
    writer.add(with_errors(last, faults) if has_errors else last)
    return FileSummary(samples, notes, faults)


@dataclass(frozen=True)
class _PieceAnswers:
    """Answers the pieces of a table one after the other."""

    model: Target
    source: str
    steps: int | None
    check: PieceCheck
    has_errors: bool
    strict: bool

    def predict(self, piece: InputPiece) -> Predictions:
        """Return the predictions for a piece, without samples if all of its series are at fault.

        Raises:
            NotInPieces: If the piece has other answers in the whole file, or may have.
            DataError: If the piece is the whole file, and cannot be used, or has a bad cell, and no series may lack its
                answer.
        """
        from stablernn.data.readers.cells import CellError
        from stablernn.data.readers.table_pieces import NotInPieces
        from stablernn.errors import DataError

        names: list[str] = []

        def predict(exclude: Mapping[str, str]) -> Predictions:
            if exclude and not piece.is_whole and not piece.has_series_besides(exclude):
                names[:] = exclude
                return Predictions({}, 0, {})
            inputs = piece.read(exclude)
            names[:] = [*inputs.ids, *exclude]
            self.check.add_times(inputs)
            if self.has_errors:
                return predict_sound_inputs(self.model, self.source, inputs, self.steps)
            return predict_inputs(self.model, inputs, self.steps)

        is_strict = self.strict or not self.has_errors
        try:
            predictions, faults = leave_out_faulty(predict, strict=is_strict)
        except DataError as error:
            # The whole file has the same error, since the rows of a piece have the numbers that they have in the file.
            if piece.is_whole or (is_strict and isinstance(error, CellError)):
                raise
            # Only the whole file says whether it is an error there, and in which words.
            raise NotInPieces from error
        self.check.add_names(names)
        return replace(predictions, errors=faults)


def _add_notes(notes: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return notes of two pieces as one: sums of counts, and all else as the first piece has it."""
    added = {**others, **notes}
    for name in notes.keys() & others.keys():
        value, other = notes[name], others[name]
        if isinstance(value, Mapping):
            added[name] = _add_notes(value, other)
        elif isinstance(value, int) and not isinstance(value, bool):
            added[name] = value + other
    return added
