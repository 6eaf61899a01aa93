"""Description of a published table and of the protocols that reproduce it. Imports no torch, so that lists are fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from stablernn.errors import unknown
from stablernn.robustness.settings import Settings as Attacks

Source = Literal["paper", "released code", "ours"]
"""Origin of a value: the paper, the program that its authors released, or a choice of this project."""


@dataclass(frozen=True)
class Setting:
    """The value of one setting of a run.

    Attributes:
        value: The value, a JSON type.
        source: Its origin.
    """

    value: Any
    source: Source


Settings = Mapping[str, Setting]
"""Settings of runs by dotted key, such as ``training.lr`` or ``model.cell_options.step_size``."""

_LENGTHS = {"training.epochs": "training.max_steps", "training.max_steps": "training.epochs"}


def paper(values: Mapping[str, Any]) -> dict[str, Setting]:
    """Return settings that the paper states."""
    return {key: Setting(value, "paper") for key, value in values.items()}


def released(values: Mapping[str, Any]) -> dict[str, Setting]:
    """Return settings of the program that the authors released."""
    return {key: Setting(value, "released code") for key, value in values.items()}


def ours(values: Mapping[str, Any]) -> dict[str, Setting]:
    """Return settings that no source states, so that they were chosen here."""
    return {key: Setting(value, "ours") for key, value in values.items()}


def merge(*layers: Settings) -> dict[str, Setting]:
    """Return all settings; later layers win, and a length in epochs replaces one in steps and vice versa."""
    merged: dict[str, Setting] = {}
    for layer in layers:
        for key in layer:
            merged.pop(_LENGTHS.get(key, ""), None)
        merged.update(layer)
    return merged


def tree(settings: Settings) -> dict[str, Any]:
    """Return the values as a tree with the sections of a configuration file."""
    root: dict[str, Any] = {}
    for key, setting in settings.items():
        *sections, name = key.split(".")
        branch = root
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = setting.value
    return root


def sources(settings: Settings) -> dict[str, Source]:
    """Return the origin of each setting by its key."""
    return {key: setting.source for key, setting in settings.items()}


ProtocolName = Literal["full", "short"]
FULL: ProtocolName = "full"
SHORT: ProtocolName = "short"

State = Literal["not run", "short", "partial", "full"]
STATES: tuple[State, ...] = ("not run", "short", "partial", "full")
"""Progress of a reproduction, least first; ``partial``: a part of the runs, epochs or data of the full protocol."""

KindName = Literal["classification", "predict-next", "robustness", "spectra", "dynamics", "speed"]
"""Kind of measurement of a table, see :mod:`stablernn_papers.kinds`."""

Statistic = Literal["mean", "min", "max"]
"""Statistic over the seeds that a column shows."""

_PRINTED_UNITS = {"K": 1_000.0, "M": 1_000_000.0}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Printed title.
        figure: Name of the figure, as the kind of the table measures it: ``test.accuracy``, ``pgd``.
        percent: Whether the figure is a share that is printed in percent.
        decimals: Digits after the point; None: three significant digits.
        statistic: Statistic over the seeds that the paper prints.
        is_published: Whether the paper has this column.
    """

    title: str
    figure: str
    percent: bool = False
    decimals: int | None = None
    statistic: Statistic = "mean"
    is_published: bool = True

    @property
    def key(self) -> str:
        """Name that is unique within a table, which may have several statistics of one figure."""
        return self.figure if self.statistic == "mean" else f"{self.figure}.{self.statistic}"


@dataclass(frozen=True)
class DataSet:
    """Data on which the rows of a table are run.

    Attributes:
        key: Name within the table.
        title: Title.
        settings: Settings of every run on it, with ``data.source``.
        columns: Its columns; None: those of the table.
        is_optional: Whether it is run only where it is named, and is not part of the published table.
    """

    key: str
    title: str
    settings: Settings
    columns: tuple[Column, ...] | None = None
    is_optional: bool = False


@dataclass(frozen=True)
class Row:
    """A model of a table.

    Attributes:
        key: Name of the row on the command line and in folders.
        cell: Key of the cell in the catalog.
        hidden_size: Length of the state; None: the one whose number of parameters is nearest to that of the reference
            row.
        preset: Preset of the cell.
        settings: Settings of its runs that differ from those of the table.
        data_settings: Settings by data set, which win over ``settings``.
        published: Figures of the paper by data set, in the order of its published columns; None stands for a figure
            that is missing in the paper or lost in the text that was read.
        published_parameters: Number of parameters as the paper prints it, by data set.
        reason: Explanation of a printed number of parameters that differs from the model's by more than its rounding.
        options: Settings of a measurement without training.
        data: Data sets of the full protocol that the row is run on; empty: all.
    """

    key: str
    cell: str
    hidden_size: int | None = None
    preset: Literal["practical", "paper"] = "paper"
    settings: Settings = field(default_factory=dict)
    data_settings: Mapping[str, Settings] = field(default_factory=dict)
    published: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    published_parameters: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()


@dataclass(frozen=True)
class Curvature:
    """Settings for measuring the Hessian of the loss.

    Attributes:
        sequences: Number of training sequences, drawn at random with a fixed seed.
        steps: Maximum number of products with the Hessian for its extreme eigenvalues, and again for its trace.
    """

    sequences: int
    steps: int


@dataclass(frozen=True)
class Protocol:
    """Settings by which every model of a table is trained and measured.

    Attributes:
        name: ``full``, or ``short`` for one that takes seconds to minutes.
        seeds: Seeds of the runs.
        settings: Settings that win over those of the table, its data and its rows.
        attacks: Settings of the robustness report; None: the table has no such columns.
        curvature: Settings of the Hessian; None: the table has no such columns.
        options: Settings of other measurements.
        most_units: Hidden size to which those of the rows are cut; None: they are not.
    """

    name: ProtocolName
    seeds: tuple[int, ...]
    settings: Settings = field(default_factory=dict)
    attacks: Attacks | None = None
    curvature: Curvature | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    most_units: int | None = None

    def document(self) -> dict[str, Any]:
        """Return the settings of measurements that all runs of one folder share, as JSON types."""
        # Without the seeds, since more may be added; settings of training are compared run by run.
        return {
            "name": self.name,
            "attacks": None if self.attacks is None else asdict(self.attacks),
            "curvature": None if self.curvature is None else asdict(self.curvature),
            "options": dict(self.options),
        }


@dataclass(frozen=True)
class Table:
    """A published table.

    Attributes:
        key: Name on the command line.
        title: Title.
        summary: Title in at most 60 characters; empty if the title is as short.
        paper: Authors, title, venue.
        source: Number of the table or figure in the paper.
        kind: Kind of measurement.
        columns: Columns of the paper, and those that are shown in addition.
        rows: Models of the paper, then those added for comparison.
        data: Data sets.
        full: The protocol of the comparison.
        short: A scaled-down protocol.
        short_data: Data sets of the short protocol; None: those of the full one.
        settings: Settings of every run.
        reference: Key of the row whose number of parameters is matched by rows without a hidden size.
        headline: Budget at which each accuracy under attack is shown.
        unspecified: Settings that the paper does not state, so that they were chosen here.
        remarks: Sentences on what is compared with what.
        sweeps: Dotted keys of the settings that the rows sweep, with the label of the axis on which they are drawn.
    """

    key: str
    title: str
    paper: str
    source: str
    kind: KindName
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    data: tuple[DataSet, ...]
    full: Protocol
    short: Protocol
    short_data: tuple[DataSet, ...] | None = None
    settings: Settings = field(default_factory=dict)
    reference: str = ""
    headline: Mapping[str, float] = field(default_factory=dict)
    unspecified: str = ""
    remarks: tuple[str, ...] = ()
    summary: str = ""
    sweeps: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_picture(self) -> bool:
        """True if a picture is drawn of its results."""
        return self.kind != "speed"

    def row(self, key: str) -> Row:
        """Return a row by its key.

        Raises:
            UnknownNameError: If the table has no such row.
        """
        for row in self.rows:
            if row.key == key:
                return row
        keys = [row.key for row in self.rows]
        raise unknown(f"row of the table '{self.key}'", key, keys, f"It has {', '.join(keys)}.")

    def protocol(self, name: ProtocolName) -> Protocol:
        """Return a protocol by its name."""
        return self.full if name == FULL else self.short

    def data_sets(self, name: ProtocolName) -> tuple[DataSet, ...]:
        """Return the data sets of a protocol, optional ones included."""
        return self.data if name == FULL or self.short_data is None else self.short_data

    def data_set(self, key: str, name: ProtocolName) -> DataSet:
        """Return a data set of a protocol by its key.

        Raises:
            UnknownNameError: If the protocol has no such data set.
        """
        data_sets = self.data_sets(name)
        for data in data_sets:
            if data.key == key:
                return data
        keys = [data.key for data in data_sets]
        raise unknown(f"data set of the table '{self.key}'", key, keys, f"It has {', '.join(keys)}.")

    def rows_on(self, data: DataSet) -> tuple[Row, ...]:
        """Return the rows that are run on a data set; on one of the short protocol's own, all."""
        is_own = data not in self.data
        return tuple(row for row in self.rows if is_own or not row.data or data.key in row.data)

    def columns_of(self, data: DataSet) -> tuple[Column, ...]:
        """Return the columns that are shown for a data set."""
        return self.columns if data.columns is None else data.columns

    def published(self, row: Row, data: DataSet) -> dict[str, float]:
        """Return the published figures of a row by the keys of their columns, without those that are lost."""
        columns = [column for column in self.columns_of(data) if column.is_published]
        figures = zip(columns, row.published.get(data.key, ()), strict=False)
        return {column.key: figure for column, figure in figures if figure is not None}

    def run_settings(self, row: Row, data: DataSet, name: ProtocolName) -> Settings:
        """Return the settings of the runs of a row on a data set, without hidden size and seed."""
        return merge(
            self.settings,
            data.settings,
            row.settings,
            row.data_settings.get(data.key, {}),
            self.protocol(name).settings,
        )

    def run_tree(self, row: Row, data: DataSet, name: ProtocolName) -> dict[str, Any]:
        """Return :meth:`run_settings` with cell and preset as a tree."""
        document = tree(self.run_settings(row, data, name))
        document["model"] = {**document.get("model", {}), "cell": row.cell, "preset": row.preset}
        document.setdefault("training", {})
        return document


def printed_count(text: str) -> tuple[float, float]:
    """Return the number that a paper prints as, for example, ``34K`` or ``1.32M``, and the unit of its last digit."""
    number, unit = text[:-1], _PRINTED_UNITS[text[-1]]
    digits = len(number.partition(".")[2])
    return float(number) * unit, unit * 10.0**-digits


def matches_print(parameters: int, text: str) -> bool:
    """Return True if a number of parameters differs from the printed one by no more than its rounding.

    Papers round and truncate, so that the whole unit of the last printed digit is allowed.
    """
    count, unit = printed_count(text)
    return abs(parameters - count) <= unit
