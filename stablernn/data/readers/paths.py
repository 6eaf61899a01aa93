"""Finding and opening data files: endings, plain, gzip or xz, the NAME_TRAIN / NAME_TEST pair."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, cast

from stablernn import errors

Task = Literal["classify", "forecast"]

#: What each ending can be read for.
FORMAT_TASKS: dict[str, tuple[Task, ...]] = {
    ".npz": ("classify",),
    ".ts": ("classify",),
    ".tsv": ("classify",),
    ".arff": ("classify",),
    ".csv": ("forecast", "classify"),
    ".parquet": ("forecast", "classify"),
}
#: Endings of tables: a row for each step of a series.
TABLE_FORMATS = (".csv", ".parquet")
#: Ending of texts, which are read by characters.
TEXT_FORMAT = ".txt"

# The formats that are not text are compressed already.
_BINARY = (".npz", ".parquet")
_PACKED = {".gz": "gzip", ".xz": "xz"}
_BLOCK_BYTES = 1 << 22

#: Bytes at the beginning of a file by which its kind is told.
SIGNATURE_BYTES = 64
_KINDS = (
    (b"\x1f\x8b", "gzip"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"PAR1", "Parquet"),
    (b"PK\x03\x04", "zip"),
    (b"\x93NUMPY", "npy"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_KIND_OF_ENDING = {".npz": "zip", ".parquet": "Parquet", ".gz": "gzip", ".xz": "xz"}
# All that is not printed, but for blanks, tabs and line breaks.
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\r\f")


def detect_format(path: Path) -> str:
    """The ending that tells the format, without ``.gz`` or ``.xz``.

    Raises:
        DataError: If no reader takes it.
    """
    plain = _unpacked(path.name.lower())
    found = Path(plain).suffix
    if found not in FORMAT_TASKS or (found in _BINARY and plain != path.name.lower()):
        raise errors.DataError(
            f"'{path.name}' has no ending that is read. Known are .npz, .parquet, .ts, .tsv, .arff and .csv; "
            "the last four also with .gz or .xz behind them."
        )
    return found


def is_text_file(path: Path) -> bool:
    """Return True if a file is read as text, by characters."""
    return _unpacked(path.name.lower()).endswith(TEXT_FORMAT)


def is_table(source: str | Path) -> bool:
    """Return True if a file has the ending of a table; False for the name of a dataset."""
    return Path(_unpacked(Path(source).name.lower())).suffix in TABLE_FORMATS


def require_task(path: Path, task: Task) -> str:
    """The file's ending, if it is one that is read for this task.

    Raises:
        DataError: If the file is for another task or no reader takes it.
    """
    found = detect_format(path)
    if task not in FORMAT_TASKS[found]:
        allowed = ", ".join(word for word, tasks in FORMAT_TASKS.items() if task in tasks)
        raise errors.DataError(f"'{path.name}' is for task '{FORMAT_TASKS[found][0]}'; task '{task}' reads {allowed}.")
    return found


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed if its name ends in ``.gz`` or ``.xz``.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is a folder, cannot be read, or is not whole gzip or xz data.
    """
    if path.is_dir():
        raise errors.DataError(f"'{path}' is a folder. Give one of the files in it.")
    packing = _PACKED.get(path.suffix.lower())
    try:
        with path.open("rb") as raw:
            check_signature(path, raw.read(SIGNATURE_BYTES))
        with _unpacking(path, packing) as file:
            yield file
    except FileNotFoundError as error:
        raise errors.UnknownNameError(f"No file '{path}'. Check the path.") from error
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        reason = str(error).removesuffix(".")
        raise errors.DataError(
            f"'{path.name}' is cut off or is not {packing} data ({reason}). Fetch it again."
        ) from error
    except OSError as error:
        raise errors.DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error


def read_bytes(path: Path) -> bytes:
    """The whole file, see :func:`open_file`.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is empty, or as for :func:`open_file`.
    """
    with open_file(path) as file:
        content = file.read()
    if not content.strip():
        raise empty_file_error(path)
    return content


def empty_file_error(path: Path) -> errors.DataError:
    """The error for a file in which nothing stands."""
    return errors.DataError(f"'{path.name}' is empty. Write it again, or give another file.")


def check_signature(path: Path, begin: bytes) -> None:
    """Refuse a file whose first bytes are those of another kind of file than its name says.

    Raises:
        DataError: If they are, with what to do.
    """
    name, kind = path.name, path.suffix.lower()
    if kind not in (*FORMAT_TASKS, *_PACKED, TEXT_FORMAT) or not begin:
        return
    expected = _KIND_OF_ENDING.get(kind, "text")
    found = next((word for magic, word in _KINDS if begin.startswith(magic)), None)
    if begin.lstrip().lower().startswith((b"<!doctype", b"<html")):
        found = "page"
    elif found is None and not _CONTROL.intersection(begin):
        found = "text"
    if found in (None, expected):
        return
    what = {
        "Parquet": f"a Parquet file. Rename it to '{path.with_suffix('.parquet').name}'",
        "zip": "a zip archive, as .npz and .xlsx are. Rename an .npz file; save a spreadsheet as CSV",
        "npy": "a single array (.npy). Write it by numpy.savez, 'x' the values and 'y' the labels",
        "UTF-16": "UTF-16 text. Save it as UTF-8",
        "page": "a web page. Fetch the file again",
        "text": f"plain text and not {expected} data. Give it the ending of its format, such as .csv",
    }
    if expected == "text":
        what |= {packed: f"{packed} data. Rename it to '{name}{suffix}'" for suffix, packed in _PACKED.items()}
    else:
        what |= {packed: f"{packed} data and not {expected} data. Unpack or rename it" for packed in _PACKED.values()}
    if found == "text" and kind in _PACKED:
        what["text"] = f"plain text and not {expected} data. Rename it to '{name[: -len(kind)]}', or fetch it again"
    raise errors.DataError(f"'{name}' is {what[str(found)]}.")


def read_text(path: Path) -> str:
    """The whole file as UTF-8 text, without a byte order mark, lines ended by ``\\n``.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is not text, or as for :func:`read_bytes`.
    """
    return normalize_newlines(decode_text(path, read_bytes(path)))


def read_text_blocks(path: Path) -> Iterator[str]:
    """The file as :func:`read_text` gives it, in pieces of some megabytes that end at the end of a line.

    A line break inside quotes ends none: a piece holds whole rows of a CSV file.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is not text, or as for :func:`read_bytes`.
    """
    rest, at, held, begun = b"", 0, "", False
    with open_file(path) as file:
        more = True
        while more:
            block = file.read(_BLOCK_BYTES)
            if block.endswith(b"\r"):
                block += file.read(1)
            rest, more = rest + block, bool(block)
            end = _end_of_rows(rest) if more else len(rest)
            held += normalize_newlines(decode_text(path, rest[:end], at))
            rest, at = rest[end:], at + end
            begun = begun or bool(held.strip())
            if begun and held:
                yield held
                held = ""
    if not begun:
        raise empty_file_error(path)


def decode_text(path: Path, content: bytes, at: int = 0) -> str:
    """UTF-8 bytes, which begin ``at`` so many bytes of the file, as text; a byte order mark is left out.

    Raises:
        DataError: If they are not UTF-8.
    """
    try:
        return content.decode("utf-8-sig" if at == 0 else "utf-8")
    except UnicodeDecodeError as error:
        raise errors.DataError(
            f"'{path.name}' is not UTF-8 text (byte {at + error.start} is 0x{error.object[error.start]:02x}). "
            "Save it as UTF-8."
        ) from error


def normalize_newlines(text: str) -> str:
    """The text with lines ended by ``\\n``, whatever system wrote it."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def find_test_file(path: Path) -> Path | None:
    """The ``NAME_TEST`` file in the folder of a ``NAME_TRAIN`` file, plain or packed; None when there is none."""
    kind = detect_format(path)
    stem = _unpacked(path.name).removesuffix(kind)
    if not stem.endswith("_TRAIN"):
        return None
    plain = path.with_name(f"{stem.removesuffix('_TRAIN')}_TEST{kind}")
    candidates = (plain, *(plain.with_name(plain.name + packed) for packed in _PACKED))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _unpacking(path: Path, packing: str | None) -> IO[bytes]:
    if packing == "gzip":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return lzma.open(path, "rb") if packing == "xz" else path.open("rb")


def _unpacked(name: str) -> str:
    return next((name.removesuffix(packed) for packed in _PACKED if name.endswith(packed)), name)


def _end_of_rows(content: bytes) -> int:
    """Where the last row that is whole ends: behind the last line break before which quotes are even in number."""
    end = content.rfind(b"\n") + 1
    while end and content.count(b'"', 0, end) % 2:
        # Quotes around a line break: the row goes on. Look before the quote that is open here.
        end = content.rfind(b"\n", 0, content.rfind(b'"', 0, end)) + 1
    return end
