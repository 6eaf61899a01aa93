"""Errors of readers and of training in the words of an estimator: its arguments and parameters, no file, no option."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stablernn.errors import StableRNNError

_SETTING = re.compile(r"\b((?:data|model|task|training)\.\w+)=([^\s,;]*[^\s,;.])")
_LITERALS = {"true": "True", "false": "False", "null": "None"}


@contextmanager
def argument_errors(filename: str, parameter_keys: Mapping[str, str], kind: str = "array") -> Iterator[None]:
    """Name the argument ``X`` in errors where they name the file that it was written to.

    Args:
        filename: Name of the file.
        parameter_keys: Key of a setting by the parameter that sets it.
        kind: ``pandas`` or ``polars`` for frames, whose rows can be named; ``series`` for an array of one series;
            ``array`` for several series or sequences.
    """
    try:
        yield
    except StableRNNError as error:
        # In place: the class, its attributes and the traceback stay.
        error.args = (_in_words_of_arguments(str(error), filename, parameter_keys, kind), *error.args[1:])
        raise


def _in_words_of_arguments(text: str, filename: str, parameter_keys: Mapping[str, str], kind: str) -> str:
    stem = re.escape(Path(filename).stem)
    # The reader takes the name of the file for that of a series that has none.
    text = re.sub(rf"'(?:[^']*/)?{re.escape(filename)}'(?:: series '{stem}')?", "X", text)
    text = re.sub(rf"\bseries '{stem}'", "X", re.sub(rf" of series '{stem}'", "", text))
    text = _rename_positions(text, kind)
    text = re.sub(r"^X has one group only", "groups has one group only", text)
    text = text.replace("Leave group_column out", "Leave groups out").replace(
        "leave group_column out", "leave groups out"
    )
    text = text.replace("by 'channels'", "by settings={'data.channels': [...]}")
    return _rename_settings(text, parameter_keys).replace("set settings={", "pass settings={")


def _rename_positions(text: str, kind: str) -> str:
    """Return a message with rows and series as indices of ``X``; files count rows from 1."""
    if kind in ("array", "series"):
        text = re.sub(r"X: series 'series_(\d+)'", r"X[\1]" if kind == "array" else "X", text)
        text = text.replace(" in feature 'value' of", " in").replace(" in column 'y' of", " in")
        return re.sub(r"\b(?:feature|column) 'channel_(\d+)'", r"channel \1", text)
    row = "X.iloc[{}]" if kind == "pandas" else "X[{}]"
    return re.sub(r"\b(?:X )?row (\d+)", lambda match: row.format(int(match[1]) - 1), text)


def _rename_settings(text: str, parameter_keys: Mapping[str, str]) -> str:
    """Return a message with settings as an estimator takes them."""
    names = {key: name for name, key in parameter_keys.items()}

    def assignment(match: re.Match[str]) -> str:
        key, value = match[1], _LITERALS.get(match[2], match[2])
        return f"{names[key]}={value}" if key in names else f"settings={{'{key}': {value}}}"

    text = _SETTING.sub(assignment, text)
    for key, name in names.items():
        # Not within settings={...}, which has quotes around its keys.
        text = re.sub(rf"(?<![\w'.]){re.escape(key)}(?![\w'=])", name, text)
    return text
