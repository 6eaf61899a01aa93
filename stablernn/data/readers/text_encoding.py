"""Recognition of the encoding of a text that is read in blocks: UTF-8, UTF-16, or Windows-1252 of older programs."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import IO, TYPE_CHECKING

from stablernn import errors

if TYPE_CHECKING:
    from stablernn.data.types import Notes

UTF8, UTF16, CP1252 = "UTF-8", "UTF-16", "Windows-1252"
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Characters of two to four bytes in UTF-8. In Windows-1252 the same bytes are pairs such as 'Ã¼', which no text has.
_MULTIBYTE = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}",
)
_NO_CP1252 = re.compile(rb"[\x00-\x08\x0e-\x1f\x81\x8d\x8f\x90\x9d]")
_READ_BYTES = 1 << 16


class Utf8Stream:
    """The bytes of a UTF-16 file as those of the same text in UTF-8.

    Args:
        path: The file, for messages.
        file: Its bytes, from the byte order mark on.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        self._decoder = codecs.getincrementaldecoder("utf-16")()
        self._pending = b""

    def read(self, size: int) -> bytes:
        """Return up to so many bytes; none at the end of the file.

        Raises:
            DataError: If the text is not UTF-16 throughout.
        """
        while len(self._pending) < size:
            block = self._file.read(_READ_BYTES)
            try:
                self._pending += self._decoder.decode(block, final=not block).encode()
            except UnicodeError as error:
                raise errors.DataError(
                    f"'{self._path.name}' begins as UTF-16 text and does not go on as such ({error}). Save it as UTF-8."
                ) from error
            if not block:
                break
        result, self._pending = self._pending[:size], self._pending[size:]
        return result


def is_utf16(begin: bytes) -> bool:
    """Return True if a file begins with a byte order mark of UTF-16."""
    return begin.startswith(_UTF16_MARKS)


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
