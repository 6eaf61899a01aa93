"""References: ``NAME``, ``NAME:VERSION`` and ``NAME@ALIAS``, parsed and printed in one place.

Names become folder names, so nothing that has not passed ``check_name`` may reach a path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stablernn_registry.errors import RefError

# [0-9] and not \d: \d also matches digits of other scripts. Always used with fullmatch: "$" would let a newline pass.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_RESERVED_ALIAS = re.compile(r"latest|v?[0-9]+")
# Path prefixes of the HTTP service: in a URL, a model of such a name would be ambiguous.
RESERVED_NAMES = frozenset({"health", "repository", "stats"})
_NAME_RULE = "1 to 64 of the characters a-z 0-9 . _ -, the first a letter or a digit"
# Windows opens a device instead of a file of such a name, whatever follows the first dot.
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")


@dataclass(frozen=True)
class Ref:
    """A reference to a version of a model; without version and alias, to the highest one.

    Attributes:
        name: Name of the model.
        version: Number of the version, 1 or more, or None.
        alias: Movable name, or None.
    """

    name: str
    version: int | None = None
    alias: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.version is not None:
            check_version(self.version)
        if self.alias is not None:
            check_alias(self.alias, self.name)
        if self.version is not None and self.alias is not None:
            raise RefError(
                f"A reference has a version or an alias, got both ({self.version} and '{self.alias}'). Give one."
            )

    def __str__(self) -> str:
        if self.version is not None:
            return f"{self.name}:{self.version}"
        return self.name if self.alias is None else f"{self.name}@{self.alias}"


def parse_ref(text: str) -> Ref:
    """Parse ``NAME``, ``NAME:VERSION`` or ``NAME@ALIAS``.

    Raises:
        RefError: If the text is none of the three, or the alias is a reserved word.
    """
    # "@" first: a ":" behind it is part of a malformed alias, and Ref reports it as one.
    name, separator, alias = text.partition("@")
    if separator:
        return Ref(name, alias=alias)
    name, separator, number = text.partition(":")
    if not separator:
        return Ref(name)
    check_name(name)
    if not _VERSION.fullmatch(number):
        raise RefError(
            f"'{text:.100}' has no version number after the colon, got '{number:.100}'. "
            f"Write '{name}:3' for version 3, '{name}@ALIAS' for an alias or '{name}' for the highest version."
        )
    return Ref(name, version=int(number))


def check_name(name: str) -> str:
    """Return ``name`` if it may name a model.

    Raises:
        RefError: If it does not match ``[a-z0-9][a-z0-9._-]{0,63}``, or is reserved: ``health``, ``repository``,
            ``stats``.
    """
    if name in RESERVED_NAMES:
        raise RefError(f"'{name}' is reserved for the HTTP service and cannot name a model. Choose another word.")
    if not is_name(name):
        raise RefError(f"A model name is {_NAME_RULE}, got {name!r:.100}.")
    return name


def is_name(name: str) -> bool:
    """Return whether ``name`` may name a model."""
    return _NAME.fullmatch(name) is not None and name not in RESERVED_NAMES


def check_new_name(name: str) -> str:
    """Return ``name`` if a new model may have it.

    This is stricter than :func:`check_name`, so that existing models with such names stay readable and can get new
    versions.

    Raises:
        RefError: If :func:`check_name` rejects it, or it is ``latest``, is a device of Windows such as ``con`` or
            ``nul.txt``, ends in a dot or has two dots in a row.
    """
    if check_name(name) == "latest":
        raise RefError(
            "'latest' is reserved and cannot name a model: a bare 'NAME' already is its highest version. "
            "Choose another word."
        )
    if _WINDOWS_DEVICE.fullmatch(name):
        raise RefError(
            f"'{name}' is a device of Windows and cannot name a model: its files could not be copied there. "
            f"Choose another word."
        )
    return _check_dots(name, "A model name")


def check_new_alias(alias: str, name: str) -> str:
    """Return ``alias`` if it may become an alias of the model ``name``.

    Raises:
        RefError: If :func:`check_alias` rejects it, or it ends in a dot or has two dots in a row.
    """
    return _check_dots(check_alias(alias, name), "An alias")


def _check_dots(name: str, label: str) -> str:
    if name.endswith(".") or ".." in name:
        raise RefError(
            f"{label} does not end in a dot and has no two dots in a row, got '{name}'. Choose another word."
        )
    return name


def check_version(version: int) -> int:
    """Return ``version`` if it can be a version number.

    Raises:
        RefError: If it is not a whole number from 1 to 999999999.
    """
    # bool is an int: True would silently mean version 1.
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= 999_999_999:
        raise RefError(f"A version is a whole number, 1 or more, got {version!r}.")
    return version


def check_alias(alias: str, name: str) -> str:
    """Return ``alias`` if it may be an alias of the model ``name``.

    Raises:
        RefError: If it is malformed, or reserved: ``latest``, digits, ``v`` with digits.
    """
    if not _NAME.fullmatch(alias):
        raise RefError(f"An alias is {_NAME_RULE}, got {alias!r:.100}.")
    if _RESERVED_ALIAS.fullmatch(alias):
        number = alias.lstrip("v")
        suggestion = f"'{name}' for the highest version" if alias == "latest" else f"'{name}:{number}' for that version"
        raise RefError(f"'{alias}' is reserved and cannot be an alias. Write {suggestion}, or choose a word.")
    return alias
