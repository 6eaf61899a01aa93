from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablernn_registry import Ref, RefError, Registry, Version, parse_ref

Publish = Callable[..., Version]

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


@given(st.text())
def test_any_text_parses_to_itself_or_is_a_ref_error(text: str) -> None:
    try:
        ref = parse_ref(text)
    except RefError:
        return
    assert str(ref) == text
    # What becomes a path has no separator and is not a way up.
    assert re.fullmatch("[a-z0-9][a-z0-9._-]*", ref.name)


@pytest.mark.parametrize("name", ["", "..", "../x", "a\\b", "A", "a\n", "x" * 65, "a%2fb"])
def test_bad_name(name: str) -> None:
    with pytest.raises(RefError, match=re.escape(RULE)):
        parse_ref(name)


@pytest.mark.parametrize("name", ["stats", "health", "repository"])
def test_reserved_name(name: str) -> None:
    with pytest.raises(RefError, match=f"'{name}' is reserved for the HTTP service"):
        parse_ref(name)


@pytest.mark.parametrize("version", ["", "0", "01", "1.0", "1:2", "٣", "1234567890"])
def test_bad_version(version: str) -> None:
    with pytest.raises(RefError, match="no version number after the colon"):
        parse_ref(f"digits:{version}")


@pytest.mark.parametrize(
    ("alias", "meant"),
    [
        ("latest", "'digits' for the highest version"),
        ("v3", "'digits:3' for that version"),
        ("12", "'digits:12' for that version"),
    ],
)
def test_reserved_alias(alias: str, meant: str) -> None:
    with pytest.raises(RefError, match=re.escape(meant)):
        parse_ref(f"digits@{alias}")


def test_version_and_alias_together() -> None:
    with pytest.raises(RefError, match=r"A reference has a version or an alias, got both \(3 and 'production'\)"):
        Ref("digits", 3, "production")


@pytest.mark.parametrize(
    "version",
    [
        0,
        True,
    ],
)
def test_version_given_as_a_number_is_checked(version: int) -> None:
    with pytest.raises(RefError, match="A version is a whole number, 1 or more, got"):
        Ref("digits", version)


@pytest.mark.parametrize(
    "name",
    [
        "con",
        "aux.txt",
        "lpt9.tar.gz",
    ],
)
def test_no_new_model_has_the_name_of_a_device(publish: Publish, registry: Registry, name: str) -> None:
    with pytest.raises(RefError, match=f"'{re.escape(name)}' is a device of Windows"):
        publish(name)
    assert not registry.root.exists()


@pytest.mark.parametrize("name", ["x.", "a..b"])
def test_no_new_name_ends_in_a_dot_or_has_two_in_a_row(publish: Publish, registry: Registry, name: str) -> None:
    rule = f"does not end in a dot and has no two dots in a row, got '{name}'. Choose another word."
    with pytest.raises(RefError, match=re.escape(rule)):
        publish(name)
    publish("digits")
    with pytest.raises(RefError, match=re.escape(rule)):
        registry.set_alias("digits", name, 1)
    assert (registry.list()[0].name, registry.aliases("digits")) == ("digits", {})


@pytest.mark.parametrize(
    "name",
    [
        "aux.txt",
        "a..b",
    ],
)
def test_a_model_that_has_such_a_name_already_is_read_and_written_as_before(
    publish: Publish, registry: Registry, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as patch:
        # As a version before these rules published it.
        patch.setattr("stablernn_registry.registry.check_new_name", lambda name: name)
        patch.setattr("stablernn_registry.registry.check_new_alias", lambda alias, name: alias)
        publish(name)
        registry.set_alias(name, "old..alias", 1)
    reader = Registry(registry.root)
    assert reader.get(f"{name}@old..alias").read("step.onnx") == b"graph"
    assert publish(name).version == 2
    assert reader.set_alias(name, "old..alias", 2).to_version == 2
    assert reader.verify().ok
