"""Finding and opening data files: endings, plain or gzip, the NAME_TRAIN / NAME_TEST pair."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Literal

from stablernn import errors

Task = Literal["classify", "forecast"]

#: What each ending holds. ``.gz`` may follow all but ``.npz``, which is compressed already.
ENDINGS: dict[str, Task] = {".npz": "classify", ".ts": "classify", ".tsv": "classify", ".csv": "forecast"}


def ending(path: Path) -> str:
    """The ending that tells the format, without ``.gz``.

    Raises:
        DataError: If no reader takes it.
    """
    name = path.name.lower()
    found = Path(name.removesuffix(".gz")).suffix
    if found not in ENDINGS or (found == ".npz" and name.endswith(".gz")):
        raise errors.DataError(
            f"'{path.name}' has no ending that is read. Known are .npz, .ts, .tsv and .csv; "
            "the last three also with .gz behind them."
        )
    return found


def require_task(path: Path, task: Task) -> str:
    """The file's ending, if it is one that is read for this task.

    Raises:
        DataError: If the file is for another task or no reader takes it.
    """
    found = ending(path)
    if ENDINGS[found] != task:
        allowed = ", ".join(word for word, kind in ENDINGS.items() if kind == task)
        raise errors.DataError(f"'{path.name}' is for task '{ENDINGS[found]}'; task '{task}' reads {allowed}.")
    return found


def read_bytes(path: Path) -> bytes:
    """The whole file, decompressed if its name ends in ``.gz``.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is a folder, is empty, or is not whole gzip data.
    """
    if path.is_dir():
        raise errors.DataError(f"'{path}' is a folder. Give one of the files in it.")
    try:
        content = path.read_bytes()
        if path.name.lower().endswith(".gz"):
            content = gzip.decompress(content)
    except FileNotFoundError as error:
        raise errors.UnknownNameError(f"No file '{path}'. Check the path.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise errors.DataError(f"'{path.name}' is cut off or is not gzip data ({error}). Fetch it again.") from error
    except OSError as error:
        raise errors.DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error
    if not content.strip():
        raise errors.DataError(f"'{path.name}' is empty.")
    return content


def read_text(path: Path) -> str:
    """The whole file as UTF-8 text, without a byte order mark, lines ended by ``\\n``.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is not text, or as for :func:`read_bytes`.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise errors.DataError(
            f"'{path.name}' is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x}). "
            "Save it as UTF-8."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def companion_test(path: Path) -> Path | None:
    """The ``NAME_TEST`` file in the folder of a ``NAME_TRAIN`` file, plain or ``.gz``; None when there is none."""
    kind = ending(path)
    stem = path.name.removesuffix(".gz").removesuffix(kind)
    if not stem.endswith("_TRAIN"):
        return None
    plain = path.with_name(f"{stem.removesuffix('_TRAIN')}_TEST{kind}")
    candidates = (plain, plain.with_name(plain.name + ".gz"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)
