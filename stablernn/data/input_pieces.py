"""``read_input_pieces``: a large table for prediction, in pieces with the inputs that it has when it is read whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from stablernn.data.options import ID_COLUMN, LABEL_COLUMN, TIME_COLUMN, Repairs
from stablernn.data.prediction_inputs import InputSet, read_inputs
from stablernn.data.readers.paths import detect_format
from stablernn.data.readers.table_pieces import NameSet, NotInPieces
from stablernn.data.readers.tables import OpenTable, open_table
from stablernn.data.repairs.categories import collapse_names

PIECE_CELLS = 1 << 20
"""Cells of a piece, at least. Its rows are held until all of its series have an answer."""


@dataclass(frozen=True, eq=False)
class InputPiece:
    """Some series of a table.

    Attributes:
        table: The table with the rows of these series.
        options: Options of :func:`read_inputs`.
    """

    table: OpenTable
    options: Mapping[str, Any]

    @property
    def is_whole(self) -> bool:
        """True if it has all series of the table."""
        return self.table.piece is not None and self.table.piece.is_whole

    def read(self, exclude: Mapping[str, str] | None = None) -> InputSet:
        """Read its series.

        Args:
            exclude: Names of series to leave out, each with the reason.

        Raises:
            DataError: As :func:`read_inputs`. Where the error names no series, reading the whole file may have none.
        """
        return read_inputs(self.table.path, **self.options, table=self.table, exclude=exclude)

    def has_series_besides(self, names: Mapping[str, str]) -> bool:
        """Return whether it has a series besides those with these names."""
        assert self.table.piece is not None
        assert self.table.id_name is not None
        return self.table.piece.has_other_series(list(names), self.table.id_name)


def read_input_pieces(path: str | Path, **options: Any) -> Iterator[InputPiece]:
    """Return the series of a table in pieces, in the order of the file.

    :class:`PieceCheck` says after each piece whether its inputs are those of the whole file.

    Args:
        path: The table.
        options: Those of :func:`read_inputs`, without ``exclude``.

    Raises:
        NotInPieces: If the table can only be read whole.
        UnknownNameError: As :func:`read_inputs`; likewise ConfigError and DataError.
    """
    path = Path(path)
    repairs = (options.get("repairs") or Repairs()).without_selection
    # Whether local times are instants, and what rows are aggregated to, can depend on all rows.
    if options.get("channels_as_series") or repairs.timezone is not None or repairs.resample is not None:
        raise NotInPieces
    if detect_format(path) not in (".csv", ".parquet"):
        raise NotInPieces
    table = open_table(
        path,
        id_column=options.get("id_column", ID_COLUMN),
        time_column=options.get("time_column", TIME_COLUMN),
        stamps=options.get("stamps"),
        repairs=repairs,
    )
    if table.id_name is None:
        raise NotInPieces
    features = [*options["features"], *options.get("static", ()), *options.get("future", ())]
    label = options.get("label_column", LABEL_COLUMN)
    wanted = {*collapse_names(features, repairs.categories), label, *repairs.categories}
    columns = [name for name in table.columns if name in wanted]
    pieces = table.pieces(columns, verbatim=(label, *repairs.categories), cells=PIECE_CELLS)
    return map(InputPiece, pieces, repeat(options))


class PieceCheck:
    """Checks that pieces have the inputs that they have in the whole file: each series is in one of them, and all have
    one time grid and times of one type."""

    def __init__(self) -> None:
        self._names = NameSet()
        self._times: tuple[Any, ...] | None = None

    def add_names(self, names: Sequence[str]) -> None:
        """Check that the series of the next piece are in no other.

        Raises:
            NotInPieces: If one is.
        """
        repeated = self._names.add(names)
        if repeated is not None:
            raise NotInPieces(f"rows of series '{repeated}' are in several places; sort the file by series")

    def add_times(self, inputs: InputSet) -> None:
        """Check that the times of the next piece are those of the others.

        Raises:
            NotInPieces: If they differ.
        """
        # A single row is on any grid, and only a forecast needs to know where the next one would be.
        if inputs.task == "classify" and inputs.lengths.max() == 1:
            return
        times = (inputs.frequency, inputs.notes.get("time_zone"), *(each.dtype for each in inputs.ds[:1]))
        if self._times not in (None, times):
            raise NotInPieces("its series do not all have the same time grid")
        self._times = times
