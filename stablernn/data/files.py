"""Data files: their formats by name and content, compression, encodings, the NAME_TRAIN / NAME_TEST pair."""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, cast

from stablernn import errors

if TYPE_CHECKING:
    from stablernn.data.types import Notes

Task = Literal["classify", "forecast"]

#: Tasks that files with each ending can be read for.
FORMAT_TASKS: dict[str, tuple[Task, ...]] = {
    ".npz": ("classify",),
    ".ts": ("classify",),
    ".tsv": ("classify",),
    ".txt": ("classify",),
    ".arff": ("classify",),
    ".csv": ("forecast", "classify"),
    ".parquet": ("forecast", "classify"),
    ".xlsx": ("forecast", "classify"),
}
#: Endings of tables: a row for each step of a series.
TABLE_FORMATS = (".csv", ".parquet", ".xlsx")
#: Ending of texts, which are read by characters, and of the UCR archive's text.
TEXT_FORMAT = ".txt"

# Formats that are not text are compressed already, so they have no compressed variant.
_BINARY = (".npz", ".parquet", ".xlsx")
_COMPRESSIONS = {".gz": "gzip", ".xz": "xz"}
_BLOCK_BYTES = 1 << 22

# Length of the beginning of a file that is compared with the signatures of other formats.
_SIGNATURE_BYTES = 64
_SIGNATURES = (
    (b"\x1f\x8b", "gzip"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"PAR1", "Parquet"),
    (b"PK\x03\x04", "zip"),
    (b"\x93NUMPY", "npy"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_EXPECTED_KINDS = {".npz": "zip", ".xlsx": "zip", ".parquet": "Parquet", ".gz": "gzip", ".xz": "xz"}
# Control characters, without tabs and line breaks.
_CONTROL_BYTES = frozenset(range(32)) - frozenset(b"\t\n\r\f")

UTF8, UTF16, CP1252 = "UTF-8", "UTF-16", "Windows-1252"
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Characters of two to four bytes in UTF-8. In Windows-1252 the same bytes are pairs such as 'Ã¼', which no text has.
_MULTIBYTE = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}",
)
_NO_CP1252 = re.compile(rb"[\x00-\x08\x0e-\x1f\x81\x8d\x8f\x90\x9d]")


def detect_format(path: Path) -> str:
    """Return the ending that gives the format, without ``.gz`` or ``.xz``.

    Raises:
        DataError: If there is no reader for it.
    """
    name = path.name.lower()
    plain_name = _strip_compression(name)
    ending = Path(plain_name).suffix
    if ending == ".hea":
        raise errors.DataError(
            f"'{path.name}' is a WFDB record, which is not read. docs/guides/sequences.md says how to convert it."
        )
    if ending not in FORMAT_TASKS or (ending in _BINARY and plain_name != name):
        raise errors.DataError(
            f"'{path.name}' has no ending that is read. Known are .npz, .parquet, .xlsx, .ts, .tsv, .txt, .arff and "
            ".csv; the last five also with .gz or .xz behind them. Recordings such as .wav are read as a folder."
        )
    return ending


def is_text_file(path: Path) -> bool:
    """Return True if a file has the ending of a text."""
    return _strip_compression(path.name.lower()).endswith(TEXT_FORMAT)


def is_table(source: str | Path) -> bool:
    """Return True if a file has the ending of a table; False for the name of a dataset."""
    return Path(_strip_compression(Path(source).name.lower())).suffix in TABLE_FORMATS


def require_task(path: Path, task: Task) -> str:
    """Return the file's ending, if it is one that is read for this task.

    Raises:
        DataError: If the file is for another task or there is no reader for it.
    """
    ending = detect_format(path)
    if task not in FORMAT_TASKS[ending]:
        allowed = ", ".join(other for other, tasks in FORMAT_TASKS.items() if task in tasks)
        raise errors.DataError(f"'{path.name}' is for task '{FORMAT_TASKS[ending][0]}'; task '{task}' reads {allowed}.")
    return ending


def check_regular(path: Path) -> None:
    """Refuse what is no file with an end, before it is opened: a pipe waits for a writer, and a device may never end.

    Raises:
        DataError: If it is a folder, a pipe or a device.
    """
    if path.is_dir():
        raise errors.DataError(f"'{path}' is a folder. Give one of the files in it.")
    if path.exists() and not path.is_file():
        raise errors.DataError(f"'{path}' is a pipe or a device, not a file. Save what it gives as a file.")


def check_binary(path: Path) -> None:
    """Refuse a path that is no file of the kind that its ending says, or an empty one.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is a folder, a pipe or a device, is empty, or is of another kind.
    """
    check_regular(path)
    if not path.is_file():
        raise errors.UnknownNameError(f"No file '{path}'. Check the path.")
    if not path.stat().st_size:
        raise empty_file_error(path)
    with path.open("rb") as file:
        _check_signature(path, file.read(_SIGNATURE_BYTES))


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open the file's bytes, decompressed if its name ends in ``.gz`` or ``.xz``.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is a folder, a pipe or a device, cannot be read, or is not whole gzip or xz data.
    """
    check_regular(path)
    compression = _COMPRESSIONS.get(path.suffix.lower())
    try:
        with path.open("rb") as raw:
            _check_signature(path, raw.read(_SIGNATURE_BYTES))
        with _open_decompressed(path, compression) as file:
            yield file
    except FileNotFoundError as error:
        raise errors.UnknownNameError(f"No file '{path}'. Check the path.") from error
    # A truncated file ends in EOFError, damage in one of the others.
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        reason = str(error).removesuffix(".")
        raise errors.DataError(
            f"'{path.name}' is cut off or is not {compression} data ({reason}). Fetch it again."
        ) from error
    except OSError as error:
        raise errors.DataError(f"'{path}' cannot be read: {error.strerror or error}.") from error


def read_bytes(path: Path) -> bytes:
    """Return the whole file, see :func:`open_file`.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is empty or larger than free memory, or as for :func:`open_file`.
    """
    # Lists of data sets name files, and do not wait for numpy.
    from stablernn.data.arrays import free_memory

    blocks, size, limit = [], 0, free_memory()
    with open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            size += len(block)
            if size > limit:
                raise too_large_error(path, size, limit)
            blocks.append(block)
    content = b"".join(blocks)
    if not content.strip():
        raise empty_file_error(path)
    return content


def too_large_error(path: Path, size: int, limit: int) -> errors.DataError:
    """Return the error for a file whose content of at least ``size`` bytes does not fit into ``limit``."""
    return errors.DataError(
        f"'{path.name}' takes {size:,} bytes of memory or more when it is unpacked, and {limit:,} are free. Check that "
        "it is what it should be, or split it."
    )


def empty_file_error(path: Path) -> errors.DataError:
    """Return the error for a file without content."""
    return errors.DataError(f"'{path.name}' is empty. Write it again, or give another file.")


def _check_signature(path: Path, begin: bytes) -> None:
    """Refuse a file whose first bytes are those of another kind of file than its name says.

    Raises:
        DataError: If they are, with advice.
    """
    name, ending = path.name, path.suffix.lower()
    if ending not in (*FORMAT_TASKS, *_COMPRESSIONS) or not begin:
        return
    expected = _EXPECTED_KINDS.get(ending, "text")
    kind = next((kind for signature, kind in _SIGNATURES if begin.startswith(signature)), None)
    if begin.lstrip().lower().startswith((b"<!doctype", b"<html")):
        kind = "page"
    elif kind is None and not _CONTROL_BYTES.intersection(begin):
        kind = "text"
    # Bytes of no known kind are left to the reader, whose error is more specific.
    if kind in (None, expected):
        return
    if kind == "UTF-16" and ending == ".csv":
        return
    descriptions = {
        "Parquet": f"a Parquet file. Rename it to '{path.with_suffix('.parquet').name}'",
        "zip": "a zip archive, as .npz and .xlsx are. Give it the ending of its format",
        "npy": "a single array (.npy). Write it by numpy.savez, 'x' the values and 'y' the labels",
        "UTF-16": "UTF-16 text. Save it as UTF-8",
        "page": "a web page. Fetch the file again",
        "text": f"plain text and not {expected} data. Give it the ending of its format, such as .csv",
    }
    if expected == "text":
        for suffix, compression in _COMPRESSIONS.items():
            descriptions[compression] = f"{compression} data. Rename it to '{name}{suffix}'"
    else:
        for compression in _COMPRESSIONS.values():
            descriptions[compression] = f"{compression} data and not {expected} data. Unpack or rename it"
    if kind == "text" and ending in _COMPRESSIONS:
        plain_name = name[: -len(ending)]
        descriptions["text"] = f"plain text and not {expected} data. Rename it to '{plain_name}', or fetch it again"
    raise errors.DataError(f"'{name}' is {descriptions[str(kind)]}.")


def read_text(path: Path) -> str:
    """Return the whole file as UTF-8 text, without a byte order mark, lines ended by ``\\n``.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is not text, or as for :func:`read_bytes`.
    """
    return normalize_newlines(decode_text(path, read_bytes(path)))


def read_text_blocks(path: Path, notes: Notes | None = None, *, block_bytes: int | None = None) -> Iterator[str]:
    """Yield the text of a table in blocks of some megabytes that end at the end of a line.

    A line break inside quotes ends no line: a block holds whole rows of a CSV file. The encoding is recognized, see
    :class:`~stablernn.data.files.TextDecoder`.

    Args:
        path: The file.
        notes: Gets ``encoding`` if it is not plain UTF-8; complete after the last block.
        block_bytes: Bytes of a block, or more if a row is longer; some megabytes when omitted.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is not text, or as for :func:`read_bytes`.
    """
    # Bytes behind the last whole row, their position in the file, and text that is not yielded yet.
    pending, position, text = b"", 0, ""
    has_content = False
    decoder = TextDecoder(path, notes)
    with open_file(path) as file, _as_utf8(path, file, notes) as stream:
        has_more = True
        while has_more:
            block = stream.read(block_bytes or _BLOCK_BYTES)
            if block.endswith(b"\r"):
                # The two characters of a Windows line break must not be in different blocks.
                block += stream.read(1)
            pending, has_more = pending + block, bool(block)
            end = _end_of_rows(pending) if has_more else len(pending)
            text += normalize_newlines(decoder.decode(pending[:end], position))
            pending, position = pending[end:], position + end
            # Blank lines at the beginning stay with the header, which is read from the first block.
            has_content = has_content or bool(text.strip())
            if has_content and text:
                yield text
                text = ""
    if not has_content:
        raise empty_file_error(path)


@contextmanager
def _as_utf8(path: Path, file: IO[bytes], notes: Notes | None) -> Iterator[IO[bytes] | _Utf8Stream]:
    """Yield the bytes of a table, those of UTF-16 text as UTF-8."""
    begin = cast(io.BufferedReader, file).peek(2)[:2]
    if not begin.startswith(_UTF16_MARKS):
        yield file
        return
    if notes is not None:
        notes["encoding"] = UTF16
    yield _Utf8Stream(path, file)


def decode_text(path: Path, content: bytes, position: int = 0) -> str:
    """Decode UTF-8 bytes; a byte order mark at the beginning of the file is left out.

    Args:
        path: The file, for messages.
        content: Some of its bytes.
        position: Position of the first of them in the file.

    Raises:
        DataError: If they are not UTF-8.
    """
    try:
        return content.decode("utf-8-sig" if position == 0 else "utf-8")
    except UnicodeDecodeError as error:
        raise errors.DataError(
            f"'{path.name}' is not UTF-8 text (byte {position + error.start} is 0x{error.object[error.start]:02x}). "
            "Save it as UTF-8."
        ) from error


def normalize_newlines(text: str) -> str:
    """Return the text with lines ended by ``\\n``, whatever system wrote it."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def find_test_file(path: Path, task: str | None = None) -> Path | None:
    """Return the ``NAME_TEST`` file in the folder of a ``NAME_TRAIN`` file, plain or compressed; None without one.

    Benchmarks of system identification also write ``name_train`` and ``name_test``.
    """
    plain = path.with_name(_strip_compression(path.name))
    endings = {"_TRAIN": "_TEST"} | ({"_train": "_test"} if task == "simulate" else {})
    ending = next((ending for ending in endings if plain.stem.endswith(ending)), None)
    if ending is None:
        return None
    plain = plain.with_stem(f"{plain.stem.removesuffix(ending)}{endings[ending]}")
    candidates = (plain, *(plain.with_name(plain.name + suffix) for suffix in _COMPRESSIONS))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _open_decompressed(path: Path, compression: str | None) -> IO[bytes]:
    if compression == "gzip":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return lzma.open(path, "rb") if compression == "xz" else path.open("rb")


def _strip_compression(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in _COMPRESSIONS if name.endswith(suffix)), name)


def _end_of_rows(content: bytes) -> int:
    """Return the end of the last whole row: behind the last line break before which the number of quotes is even."""
    end = content.rfind(b"\n") + 1
    while end and content.count(b'"', 0, end) % 2:
        # The line break is in quotes, so the row goes on: search before the quote that is open here.
        end = content.rfind(b"\n", 0, content.rfind(b'"', 0, end)) + 1
    return end


class _Utf8Stream:
    """The bytes of a UTF-16 file, from its byte order mark on, as those of the same text in UTF-8."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._text = path, io.TextIOWrapper(file, encoding="utf-16", newline="")

    def read(self, size: int) -> bytes:
        """Return the bytes of up to so many characters; none at the end of the file.

        Raises:
            DataError: If the text is not UTF-16 throughout.
        """
        try:
            return self._text.read(size).encode()
        except UnicodeError as error:
            raise errors.DataError(
                f"'{self._path.name}' begins as UTF-16 text and does not go on as such ({error}). Save it as UTF-8."
            ) from error


class TextDecoder:
    """Decodes the blocks of a text of unknown encoding, which all must have the same one.

    Text is UTF-8 until a byte is not; then it is Windows-1252, of which Latin-1 is a part, unless the file has
    characters of UTF-8 as well. ASCII is the same in both.

    Args:
        path: The file, for messages.
        notes: Gets ``encoding`` if it is not plain UTF-8.
    """

    def __init__(self, path: Path, notes: Notes | None = None) -> None:
        self._path, self._notes = path, notes if notes is not None else {}
        # None while all text is ASCII.
        self._encoding: str | None = None
        self._line = 1

    def decode(self, content: bytes, position: int) -> str:
        """Decode the next bytes of the file, whole lines of it.

        Args:
            content: The bytes.
            position: Position of the first of them in the file.

        Raises:
            DataError: If they are text of no encoding, or of another one than those before.
        """
        if position == 0 and content.startswith(codecs.BOM_UTF8):
            content, self._encoding = content[len(codecs.BOM_UTF8) :], UTF8
            self._notes["encoding"] = "UTF-8 with a byte order mark"
        text = self._decode(content)
        self._line += content.count(b"\n")
        return text

    def _decode(self, content: bytes) -> str:
        if content.isascii():
            return content.decode("ascii")
        if self._encoding != CP1252:
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError as error:
                if self._encoding == UTF8 or _MULTIBYTE.search(content):
                    raise self._mixture_error(content, error.start) from error
            else:
                self._encoding = UTF8
                return text
        elif match := _MULTIBYTE.search(content):
            raise self._mixture_error(content, match.start())
        # Bytes that Windows-1252 does not have, or no text has.
        invalid = _NO_CP1252.search(content)
        if invalid:
            raise errors.DataError(
                f"'{self._path.name}' is neither UTF-8 nor Windows-1252 text (line "
                f"{self._line_of(content, invalid.start())} has the byte 0x{content[invalid.start()]:02x}). Save it as "
                "UTF-8."
            )
        text = content.decode("cp1252")
        self._encoding = CP1252
        self._notes["encoding"] = CP1252
        return text

    def _mixture_error(self, content: bytes, position: int) -> errors.DataError:
        line = self._line_of(content, position)
        return errors.DataError(
            f"'{self._path.name}' has text of two encodings, UTF-8 and another one, such as files that were joined: "
            f"line {line} differs (byte 0x{content[position]:02x}). Save all of it as UTF-8."
        )

    def _line_of(self, content: bytes, position: int) -> int:
        return self._line + content.count(b"\n", 0, position)
