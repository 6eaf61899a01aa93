from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablernn_registry import Ref, RefError, parse_ref

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True)
RULE = "1 to 64 of the characters a-z 0-9 . _ -, the first a letter or a digit"


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("digits", Ref("digits")),
        ("digits:3", Ref("digits", version=3)),
        ("digits@production", Ref("digits", alias="production")),
        ("7", Ref("7")),
        ("a..b", Ref("a..b")),
    ],
)
def test_parses_and_prints_back(text: str, ref: Ref) -> None:
    assert parse_ref(text) == ref
    assert str(ref) == text


@given(NAMES, st.integers(1, 999_999_999))
def test_every_name_and_version_round_trips(name: str, version: int) -> None:
    assert parse_ref(f"{name}:{version}") == Ref(name, version)


@given(st.text())
def test_any_text_parses_to_itself_or_is_a_ref_error(text: str) -> None:
    try:
        ref = parse_ref(text)
    except RefError:
        return
    assert str(ref) == text
    # What becomes a path has no separator and is not a way up.
    assert re.fullmatch("[a-z0-9][a-z0-9._-]*", ref.name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "A", "-a", ".a", "a\n", "a b", "é", "a\0", "x" * 65, "a#b", "a%2fb"]
)
def test_bad_name(name: str) -> None:
    with pytest.raises(RefError) as error:
        parse_ref(name)
    assert str(error.value) == f"A model name is {RULE}, got {name!r}."


@pytest.mark.parametrize("name", ["stats", "health", "repository"])
def test_reserved_name(name: str) -> None:
    with pytest.raises(RefError) as error:
        parse_ref(name)
    assert (
        str(error.value) == f"'{name}' is reserved for the HTTP service and cannot name a model. Choose another word."
    )


@pytest.mark.parametrize("text", ["x" * 5000, "digits:" + "9" * 5000, "digits@" + "x" * 5000])
def test_a_long_reference_is_not_echoed_whole(text: str) -> None:
    with pytest.raises(RefError) as error:
        parse_ref(text)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("version", ["", "0", "01", "-1", "1.0", "v1", "latest", "1:2", "٣", "1\n", "1234567890"])
def test_bad_version(version: str) -> None:
    with pytest.raises(RefError) as error:
        parse_ref(f"digits:{version}")
    assert str(error.value) == (
        f"'digits:{version}' has no version number after the colon, got '{version}'. Write 'digits:3' for version 3, "
        f"'digits@ALIAS' for an alias or 'digits' for the highest version."
    )


@pytest.mark.parametrize(
    ("alias", "meant"),
    [
        ("latest", "'digits' for the highest version"),
        ("v3", "'digits:3' for that version"),
        ("12", "'digits:12' for that version"),
    ],
)
def test_reserved_alias(alias: str, meant: str) -> None:
    with pytest.raises(RefError) as error:
        parse_ref(f"digits@{alias}")
    assert str(error.value) == (f"'{alias}' is reserved and cannot be an alias. Write {meant}, or choose a word.")


def test_alias_that_is_not_well_formed() -> None:
    with pytest.raises(RefError) as error:
        parse_ref("digits@a/b")
    assert str(error.value) == f"An alias is {RULE}, got 'a/b'."


def test_version_and_alias_together() -> None:
    with pytest.raises(RefError) as error:
        Ref("digits", 3, "production")
    assert str(error.value) == "A reference has a version or an alias, got both (3 and 'production'). Give one."


@pytest.mark.parametrize("version", [0, -1, True, 10**9])
def test_version_given_as_a_number_is_checked(version: int) -> None:
    with pytest.raises(RefError) as error:
        Ref("digits", version)
    assert str(error.value) == f"A version is a whole number, 1 or more, got {version!r}."
