"""The options of loading data: which there are, what they mean and their defaults.

:func:`~stablernn.data.load.load_data` takes them as keywords, a run's settings hold them in their section ``data``.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

ID_COLUMN = "unique_id"
TIME_COLUMN = "ds"
LABEL_COLUMN = "label"
#: The target when none is named and the table has this column.
TARGET_COLUMN = "y"
VALIDATION_FRACTION = 0.2
#: Numpy's generator, which draws the validation sequences, takes 32 bits.
LARGEST_SEED = 2**32 - 1

#: Repairs of a table, in the order in which they are made; :class:`Repairs` describes them.
REPAIR_OPTIONS = (
    *("sheet", "decimal_mark", "thousands_mark", "date_format", "missing", "timezone", "sort", "on_duplicate"),
    *("categories", "unknown_category", "resample", "aggregate", "min_length"),
)
#: Those of them that a file to predict may need though the training data did not; the others make the model's inputs.
FILE_REPAIRS = tuple(name for name in REPAIR_OPTIONS if name not in ("categories", "min_length"))
#: Roles of a table's columns, how its timestamps are read, and what is repaired.
TABLE_OPTIONS = ("id_column", "time_column", "label_column", "stamps", *REPAIR_OPTIONS)
#: Those of them that a folder of recordings takes: of its manifest, and of recordings that are text.
FOLDER_OPTIONS = ("label_column", "decimal_mark", "thousands_mark")
#: Options that only files of some task take, in the order in which the first misplaced one is reported.
TASK_OPTIONS = (
    *("target", "channels", "horizon", "context_length", "season", "frequency", "validation_steps", "test_steps"),
    *TABLE_OPTIONS,
    *("group_column", "future", "static", "calendar", "window_stride"),
)
#: Options of experiments, which the task 'simulate' alone has.
SIMULATION_OPTIONS = ("inputs", "outputs", "sample_time", "washout")
#: Options of a table that experiments take.
EXPERIMENT_OPTIONS = (
    *("id_column", "time_column", "sheet", "decimal_mark", "thousands_mark", "date_format", "missing"),
    *SIMULATION_OPTIONS,
)
#: Options that only named datasets take; each dataset takes some of them.
NAMED_OPTIONS = ("variant", "partial", "permutation", "length")

TaskName = Literal["classify", "forecast", "predict-next", "simulate"]
Stamps = Literal["unix-s", "unix-ms", "yyyymmdd", "yyyyww", "yyyyddd", "yyyyq", "excel", "step"]

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Share = Annotated[float, Field(gt=0, lt=1)]


def as_tuple(value: object) -> object:
    """Return a list as a tuple, anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def names_as_tuple(value: object) -> object:
    """Return one name or a list of names as a tuple, anything else as it is."""
    return (value,) if isinstance(value, str) else as_tuple(value)


def codes_as_tuple(value: object) -> object:
    """Return one code or a list of codes as a tuple, anything else as it is."""
    return (value,) if isinstance(value, str | int | float) else as_tuple(value)


def categories_as_mapping(value: object) -> object:
    """Return names of columns as a mapping to no categories, those of a mapping as tuples, anything else as it is."""
    names = names_as_tuple(value)
    if isinstance(names, tuple):
        return dict.fromkeys(names, ())
    return {name: names_as_tuple(entry) for name, entry in value.items()} if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class CommandOption:
    """The option by which commands such as `stablernn train` take a setting, in the annotation of its field.

    Its type is that of the field. A list of texts with a ``metavar`` is separated by commas, one without is an option
    that may be repeated.

    Attributes:
        help: Its text in the help.
        name: Its name without dashes, with underscores; empty for that of the field.
        metavar: What stands for its value in the help.
        flags: Names of the flags for true and false, separated by a slash.
    """

    help: str
    name: str = ""
    metavar: str | None = None
    flags: str | None = None


Names = Annotated[tuple[str, ...], BeforeValidator(names_as_tuple)]
Codes = Annotated[tuple[int | float | str, ...], BeforeValidator(codes_as_tuple)]
Categories = Annotated[dict[str, tuple[str, ...]], BeforeValidator(categories_as_mapping)]


def add_descriptions(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the descriptions to the JSON Schema of a model: the ``json_schema_extra`` of its configuration."""
    for option, description in option_descriptions(model).items():
        schema["properties"][option]["description"] = description


@cache
def option_descriptions(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the description of each option of a model.

    The option ``use_attribute_docstrings`` of pydantic does the same at every import, where it takes a tenth of the
    start of a command that seldom needs them.

    Args:
        model: A class whose source is at hand.
    """
    descriptions: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for option, text in pairwise(definition.body):
            match option, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(description))):
                    descriptions[name] = inspect.cleandoc(description)
    return descriptions


class _Options(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, json_schema_extra=add_descriptions
    )


class Repairs(_Options):
    """Options that make a table readable: what is converted, merged, replaced or set aside. Each repair is counted."""

    sheet: str | None = None
    """Sheet of a workbook (.xlsx); None: the only one."""
    decimal_mark: Literal[",", "."] | None = None
    """Mark of decimals in numbers that are text, as in CSV; None: recognized."""
    thousands_mark: Literal[",", ".", " ", "'"] | None = None
    """Mark between thousands in numbers that are text; None: recognized, if it is a comma or a point."""
    date_format: str | None = None
    """Format of dates by the codes of strftime, such as '%d/%m/%Y %H:%M' or '%m/%d/%Y %I:%M %p'; 24:00 is the midnight
    after the day. None: the year first, or the day with points."""
    missing: Codes = ()
    """Values that stand for a missing one, such as -9999 or '-'."""
    timezone: str | None = None
    """Zone of local times, such as 'Europe/Berlin', which are converted to UTC; times that state a zone need none
    unless they are its days."""
    sort: bool = False
    """Sort the rows of each series by time."""
    on_duplicate: Literal["error", "mean", "last"] = "error"
    """What to do with rows that repeat a time of their series: refuse them, or keep their mean or the last one."""
    categories: Categories = {}
    """Columns of text that become a channel for each category, 1 in its rows and 0 elsewhere; a run stores the
    categories of each column. Columns that are also in static or future have that role."""
    unknown_category: Literal["zeros", "error"] = "zeros"
    """What to do with a category that training did not have: count it and set all channels of its column to 0, or
    refuse it."""
    resample: str | None = None
    """Step to which the rows of each series are aggregated, a multiple of s, min, h or D, such as '15min'."""
    aggregate: Literal["mean", "sum", "last"] = "mean"
    """Aggregation by resample. A sum is missing if any of its rows or values is."""
    min_length: Count | None = None
    """Rows that a series must have, after resampling, to be trained and scored on; shorter ones are set aside."""

    @property
    def without_selection(self) -> Repairs:
        """The repairs of a file for prediction, where no series is set aside."""
        return self.model_copy(update={"min_length": None})


class _SourceOptions(_Options):
    """Options of reading and splitting a source, without repairs."""

    source: str | Path
    """Name of a dataset or path of a file."""
    test: str | Path | None = None
    """File with the test split; None: what the source itself brings."""
    target: Annotated[
        Names | None, CommandOption("Column to forecast, may be repeated; default: y, or the only one.")
    ] = None
    """Column or columns to forecast; None: 'y', or the only one there is."""
    id_column: Annotated[str, CommandOption("Column that identifies the series; default: unique_id.")] = ID_COLUMN
    """Column that names the series."""
    time_column: Annotated[str, CommandOption("Column of timestamps; default: ds.")] = TIME_COLUMN
    """Column with the timestamps."""
    stamps: Annotated[
        Stamps | None,
        CommandOption("Meaning of whole numbers as times; default: step, rejected where they look like dates."),
    ] = None
    """Meaning of integers in the column of timestamps: Unix times in seconds or milliseconds, dates without
    separators, a year with its week, day or quarter, days of a spreadsheet, or numbers of steps; None: numbers of
    steps, rejected if they look like one of the others."""
    label_column: str = LABEL_COLUMN
    """Column of a table with the class of each series."""
    channels: Names | None = None
    """Inputs of the model, in this order: columns of a table, None for all numeric ones; features of sequences."""
    inputs: Annotated[
        Names,
        CommandOption("Simulation: columns or arrays of the inputs of a machine, such as u.", metavar="COLUMN,..."),
    ] = ()
    """Columns of the inputs of a machine that is simulated."""
    outputs: Annotated[
        Names, CommandOption("Simulation: columns or arrays of its measured outputs, such as y.", metavar="COLUMN,...")
    ] = ()
    """Columns of its measured outputs."""
    sample_time: Annotated[float, Field(gt=0)] | None = None
    """Sampling time of experiments in seconds; None: by their times, where they have any."""
    washout: Annotated[int, Field(ge=0)] = 5
    """Samples at the beginning of an experiment that are not scored, since its initial state is not known."""
    frequency: Annotated[
        str | None, CommandOption("Frequency of the time grid, such as h or W; default: inferred from the data.")
    ] = None
    """Frequency alias of the time grid, such as 'h' or 'W'; None: found in the data."""
    calendar: Annotated[
        tuple[Literal["day", "week", "year"], ...],
        BeforeValidator(names_as_tuple),
        CommandOption(
            "Periods of which a forecast is told where each step lies: day, week, year.", metavar="PERIOD,..."
        ),
    ] = ()
    """Periods of which a forecast is told where each step lies."""
    future: Annotated[
        Names, CommandOption("Columns that are known in advance, such as prices.", metavar="COLUMN,...")
    ] = ()
    """Columns that are known in advance; trained layers see their past, too."""
    static: Annotated[Names, CommandOption("Columns with one value for each series.", metavar="COLUMN,...")] = ()
    """Columns of numbers with one value for each series."""
    group_column: Annotated[
        str | None,
        CommandOption(
            "Column of a table or a folder's manifest, or array of an .npz file, with the group of each sequence, such "
            "as a person: held out whole.",
            name="group",
        ),
    ] = None
    """Column of a table or of a folder's ``manifest.csv``, or array of an .npz file, with the group of each sequence,
    such as a person or a machine: sequences of one group are all trained on or all held out."""
    validation_steps: Count | None = None
    """Steps of each series that validate a forecast; None: by validation_fraction."""
    test_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps at the end of each series that test a forecast, 0: none; None: by validation_fraction."""
    validation_fraction: Share = VALIDATION_FRACTION
    """Share held out of the training sequences, or of the shortest series for each split."""
    channels_as_series: bool = False
    """Make each column of a wide table a series of its own, with one model for all of them."""
    window_stride: Count = 1
    """Steps from a training window to the next, for long series."""
    seed: Seed = 0
    """Of the draw of the validation sequences, and of what a named dataset generates."""
    variant: str | None = None
    """Form in which a named dataset is used, such as 'released'; None: its default."""
    partial: bool = False
    """Accept a named dataset of which only a part is on disk."""
    permutation: str | None = None
    """Order of the pixels of 'pmnist', such as 'nnrnn' or 'torch-12008'; None: 'urnn'."""
    length: Count | None = None
    """Steps of a sequence of a named dataset that has no fixed length; None: its default."""


# The fields of the last base come first.
class DataOptions(Repairs, _SourceOptions):
    """Options of reading and splitting a source that every task has."""

    @property
    def repairs(self) -> Repairs:
        """The options that make a table readable."""
        return Repairs.model_construct(**{name: getattr(self, name) for name in Repairs.model_fields})

    @property
    def of_table(self) -> dict[str, Any]:
        """The options of :func:`~stablernn.data.table.series.open_table`."""
        return {
            "id_column": self.id_column,
            "time_column": self.time_column,
            "stamps": self.stamps,
            "repairs": self.repairs,
        }


class LoadOptions(DataOptions):
    """Options of reading and splitting a source, with those of the task."""

    task: str | None = None
    """classify, forecast, predict-next or simulate; None: what the data is for."""
    horizon: Count | None = None
    """Steps to forecast; None: the dataset's, else the season, at most 96 or a quarter of the series."""
    context_length: Count | None = None
    """Steps before them; None: the dataset's, else twice the season or the horizon, as far as it fits."""
    season: Count | None = None
    """Steps of the main season, 1 = none; None: the dataset's, else from the frequency."""

    @classmethod
    def unchecked(cls, source: str | Path, *, caller: str = "load_data", **options: Any) -> LoadOptions:
        """Take options from Python code as they are.

        Loading checks them where a message can name the file that they do not fit. Validation would come before that,
        and would refuse numpy's integers.

        Args:
            source: Name of a dataset or path of a file.
            caller: Name of the function that was called with the options, for the message about an unknown one.
            options: The other options.

        Raises:
            TypeError: If a name is not an option.
        """
        for name in options:
            if name not in cls.model_fields:
                raise TypeError(f"{caller}() got an unexpected keyword argument '{name}'")
        for name in ("target", "channels"):
            if options.get(name) is not None:
                options[name] = _tuple_of(options[name])
        for name in ("inputs", "outputs", "future", "static", "calendar"):
            options[name] = _tuple_of(options.get(name) or ())
        options["missing"] = codes_as_tuple(() if options.get("missing") is None else options["missing"])
        options["categories"] = categories_as_mapping(options.get("categories") or {})
        return cls.model_construct(source=source, **options)

    def changed(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return which of these options differ from their defaults, in this order."""
        fields = type(self).model_fields
        return tuple(name for name in names if getattr(self, name) != fields[name].default)

    def with_options(self, **options: Any) -> LoadOptions:
        """Return the options with some of them replaced."""
        return self.model_copy(update=options)

    def reset(self, names: Sequence[str]) -> LoadOptions:
        """Return the options with these at their defaults."""
        fields = type(self).model_fields
        return self.model_copy(update={name: fields[name].default for name in names})

    def with_defaults(self, defaults: Mapping[str, Any]) -> LoadOptions:
        """Return the options with other values for those that are at their defaults."""
        changed = self.changed(tuple(defaults))
        return self.model_copy(update={name: value for name, value in defaults.items() if name not in changed})


def _tuple_of(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
