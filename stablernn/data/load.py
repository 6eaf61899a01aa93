"""``load_data``: a name or a file in, a dataset ready for training out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stablernn.data.load_source import load_source
from stablernn.data.options import ID_COLUMN, LABEL_COLUMN, TIME_COLUMN, VALIDATION_FRACTION, LoadOptions
from stablernn.data.step_data import Data


def load_data(
    source: str | Path,
    *,
    task: str | None = None,
    test: str | Path | None = None,
    target: str | Sequence[str] | None = None,
    id_column: str = ID_COLUMN,
    time_column: str = TIME_COLUMN,
    label_column: str = LABEL_COLUMN,
    group_column: str | None = None,
    stamps: str | None = None,
    channels: Sequence[str] | None = None,
    future: Sequence[str] | None = None,
    static: Sequence[str] | None = None,
    calendar: Sequence[str] | None = None,
    horizon: int | None = None,
    context_length: int | None = None,
    season: int | None = None,
    frequency: str | None = None,
    validation_steps: int | None = None,
    test_steps: int | None = None,
    validation_fraction: float = VALIDATION_FRACTION,
    window_stride: int = 1,
    seed: int = 0,
    variant: str | None = None,
    partial: bool = False,
    permutation: str | None = None,
    length: int | None = None,
    channels_as_series: bool = False,
    sheet: str | None = None,
    decimal_mark: str | None = None,
    thousands_mark: str | None = None,
    date_format: str | None = None,
    missing: float | str | Sequence[float | str] = (),
    timezone: str | None = None,
    sort: bool = False,
    on_duplicate: str = "error",
    categories: Sequence[str] | Mapping[str, Sequence[str]] = (),
    unknown_category: str = "zeros",
    resample: str | None = None,
    aggregate: str = "mean",
    min_length: int | None = None,
) -> Data:
    """Read a named dataset or a file and split it into training, validation and test.

    Classification comes from ``.npz``, ``.ts``, ``.tsv`` and ``.arff``, forecasting from ``.csv``, ``.parquet`` and
    ``.xlsx``, which serve classification, too, where they have a column of labels and no column ``y``, or the task says
    so. Text may be ``.gz`` or ``.xz``. A file ``NAME_TRAIN`` brings the ``NAME_TEST`` of its folder as its test split.

    Args:
        source: Name of a dataset (see :func:`list_datasets`) or path of a file.
        task: ``classify``, ``forecast`` or ``predict-next``; what the source is for when omitted.
        test: File of the test split: sequences, or later rows of the same series.
        target: Forecast: channels to forecast. Default: ``y``, or the only channel.
        id_column: Tables: column that tells series apart.
        time_column: Tables: column of timestamps.
        label_column: Tables: column with the class of each series.
        group_column: Classification: column of a table, or array of an ``.npz`` file, with the group of each sequence.
            Sequences of one group are all trained on or all held out.
        stamps: Tables: what whole numbers in the column of timestamps are: ``unix-s``, ``unix-ms``, ``yyyymmdd``,
            ``yyyyww``, ``yyyyddd``, ``yyyyq``, ``excel`` or ``step``. Default: numbers of steps, refused where they
            look like one of the others.
        channels: Inputs of the model, in its order. Tables: columns; all columns of numbers when omitted. Sequences:
            all features, matched by name; a file that does not name its features takes these names.
        future: Forecast: columns that are known in advance; their past is seen, too.
        static: Forecast: columns of numbers with one value for each series.
        calendar: Forecast: periods for which the model gets the position of each step: ``day``, ``week``, ``year``.
        horizon: Forecast: steps to forecast. Default: the season, at most 96.
        context_length: Forecast: steps before them. Default: twice the season or the horizon, as far as it fits.
        season: Forecast: steps of a season. Default: what the frequency suggests.
        frequency: Forecast: frequency alias of the time grid. Default: inferred.
        validation_steps: Forecast: steps before the test. Default: by ``validation_fraction``.
        test_steps: Forecast: steps at the end, 0 for no test split. Default: by ``validation_fraction``.
        validation_fraction: Share of the training sequences that are drawn for validation; for forecasting the share of
            the shortest series that validation and test get each.
        window_stride: Forecast: steps from a training window to the next.
        seed: Draws the validation sequences, and what a named dataset generates; 0 to 2**32 - 1.
        variant: Named datasets: one of the forms in which the papers use it, see ``docs/datasets.md``.
        partial: Named datasets: whether one that is here only in part will do.
        permutation: Named datasets: order of the pixels.
        length: Named datasets: steps of a sequence.
        channels_as_series: Forecast: whether each of the targets, by default each channel, is a series of its own.
        sheet: Workbooks: the sheet. Default: the only one.
        decimal_mark: Tables: mark of decimals in numbers that are text, ``,`` or ``.``. Default: recognized.
        thousands_mark: Tables: mark between thousands in them, ``,``, ``.``, a blank or ``'``. Default: recognized, if
            it is one of the first two.
        date_format: Tables: format of dates, as for strftime. Default: the year first, or the day with points.
        missing: Tables: values that stand for a missing one, such as -9999.
        timezone: Tables: zone of times that state none, such as ``Europe/Berlin``. They are converted to UTC.
        sort: Tables: whether to sort the rows of each series by time.
        on_duplicate: Tables: what becomes of rows that repeat a time of their series: ``error``, ``mean`` or ``last``.
        categories: Tables: columns of text that become a channel for each category, or a value of each series where
            they are also in ``static``; as a mapping with the categories of each column, in their order.
        unknown_category: Tables: what becomes of a category that is not in such a mapping: ``zeros`` or ``error``.
        resample: Tables: step to which rows are aggregated, a multiple of ``s``, ``min``, ``h`` or ``D``.
        aggregate: Tables: how: ``mean``, ``sum`` or ``last``.
        min_length: Tables: rows that a series must have; shorter ones are set aside.

    Raises:
        UnknownNameError: If the source is neither a dataset nor a file, or a task or column is not there.
        ConfigError: If a setting is out of its range or is not for this task.
        DataError: If the content cannot be used.
    """
    options = LoadOptions.unchecked(
        source,
        task=task,
        test=test,
        target=target,
        id_column=id_column,
        time_column=time_column,
        label_column=label_column,
        group_column=group_column,
        stamps=stamps,
        channels=channels,
        future=future,
        static=static,
        calendar=calendar,
        horizon=horizon,
        context_length=context_length,
        season=season,
        frequency=frequency,
        validation_steps=validation_steps,
        test_steps=test_steps,
        validation_fraction=validation_fraction,
        window_stride=window_stride,
        seed=seed,
        variant=variant,
        partial=partial,
        permutation=permutation,
        length=length,
        channels_as_series=channels_as_series,
        sheet=sheet,
        decimal_mark=decimal_mark,
        thousands_mark=thousands_mark,
        date_format=date_format,
        missing=missing,
        timezone=timezone,
        sort=sort,
        on_duplicate=on_duplicate,
        categories=categories,
        unknown_category=unknown_category,
        resample=resample,
        aggregate=aggregate,
        min_length=min_length,
    )
    return load_source(options)
