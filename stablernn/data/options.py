"""The options of loading data: which there are, what they mean and their defaults.

:func:`~stablernn.data.load.load_data` takes them as keywords, a run's settings hold them in their section ``data``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from stablernn.data.time.numeric_timestamps import Stamps

ID_COLUMN = "unique_id"
TIME_COLUMN = "ds"
LABEL_COLUMN = "label"
#: The target when none is named and the table has this column.
TARGET_COLUMN = "y"
VALIDATION_FRACTION = 0.2
#: Numpy's generator, which draws the validation sequences, takes 32 bits.
LARGEST_SEED = 2**32 - 1

#: Roles of a table's columns, and how its timestamps are read.
TABLE_OPTIONS = ("id_column", "time_column", "label_column", "stamps")
#: Options that only files of some task take, in the order in which the first misplaced one is reported.
TASK_OPTIONS = (
    *("target", "channels", "horizon", "context_length", "season", "frequency", "validation_steps", "test_steps"),
    *TABLE_OPTIONS,
    *("group_column", "future", "static", "calendar", "window_stride"),
)
#: Options that only named datasets take; each dataset takes some of them.
NAMED_OPTIONS = ("variant", "partial", "permutation", "length")

TaskName = Literal["classify", "forecast", "predict-next"]

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Share = Annotated[float, Field(gt=0, lt=1)]


def as_tuple(value: object) -> object:
    """Return a list as a tuple, anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def names_as_tuple(value: object) -> object:
    """Return one name or a list of names as a tuple, anything else as it is."""
    return (value,) if isinstance(value, str) else as_tuple(value)


Names = Annotated[tuple[str, ...], BeforeValidator(names_as_tuple)]


class DataOptions(BaseModel):
    """Options of reading and splitting a source that every task has."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    source: str | Path
    """Name of a dataset or path of a file."""
    test: str | Path | None = None
    """File with the test split; None: what the source itself brings."""
    target: Names | None = None
    """Column or columns to forecast; None: 'y', or the only one there is."""
    id_column: str = ID_COLUMN
    """Column that names the series."""
    time_column: str = TIME_COLUMN
    """Column with the timestamps."""
    stamps: Stamps | None = None
    """Meaning of integers in the column of timestamps: Unix times in seconds or milliseconds, dates without
    separators, or numbers of steps; None: numbers of steps, rejected if they look like one of the others."""
    label_column: str = LABEL_COLUMN
    """Column of a table with the class of each series."""
    group_column: str | None = None
    """Column of a table, or array of an .npz file, with the group of each sequence, such as a person or a machine:
    sequences of one group are all trained on or all held out."""
    channels: Names | None = None
    """Inputs of the model, in this order: columns of a table, None for all numeric ones; features of sequences."""
    future: Names = ()
    """Columns that are known in advance; their past is seen, too."""
    static: Names = ()
    """Columns of numbers with one value for each series."""
    calendar: Annotated[tuple[Literal["day", "week", "year"], ...], BeforeValidator(names_as_tuple)] = ()
    """Periods of which a forecast is told where each step lies."""
    frequency: str | None = None
    """Frequency alias of the time grid, such as 'h' or 'W'; None: found in the data."""
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
    """Form in which a named dataset is used, such as 'released'; None: its default, see docs/datasets.md."""
    partial: bool = False
    """Accept a named dataset of which only a part is on disk."""
    permutation: str | None = None
    """Order of the pixels of 'pmnist', such as 'nnrnn' or 'torch-12008'; None: 'urnn'."""
    length: Count | None = None
    """Steps of a sequence of a named dataset that has no fixed length; None: its default, see docs/datasets.md."""


class LoadOptions(DataOptions):
    """Options of reading and splitting a source, with those of the task."""

    task: str | None = None
    """classify, forecast or predict-next; None: what the data is for."""
    horizon: Count | None = None
    """Steps to forecast; None: the dataset's, else the season, at most 96."""
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
        for name in ("future", "static", "calendar"):
            options[name] = _tuple_of(options.get(name) or ())
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
