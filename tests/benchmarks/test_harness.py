"""What all benchmarks share: the command in their results, and tables between the markers of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark_scripts import BENCHMARKS, script


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ([], "python benchmarks/speed.py"),
        (["--keys", "1000", "--seconds", "3"], "python benchmarks/speed.py --keys 1000 --seconds 3"),
        (["--scratch", "/home/someone/there", "--short"], "python benchmarks/speed.py --scratch DIR --short"),
        (["--scratch=/home/someone/there"], "python benchmarks/speed.py --scratch=DIR"),
        (["--only", "two words"], "python benchmarks/speed.py --only 'two words'"),
    ],
)
def test_the_command_is_recorded_as_it_was_given(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], command: str
) -> None:
    monkeypatch.setattr("sys.argv", ["/home/someone/checkout/benchmarks/speed.py", *arguments])
    assert script("harness").given_command({"--scratch": "DIR"}) == command


def test_tables_are_replaced_between_their_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- a -->\nold\nold\n<!-- /a -->\n\n<!-- b -->\n<!-- /b -->\nAfter.\n")
    script("harness").replace_tables(page, {"a": r"| \1 |", "b": "| new |"})
    text = "Before.\n\n<!-- a -->\n| \\1 |\n<!-- /a -->\n\n<!-- b -->\n| new |\n<!-- /b -->\nAfter.\n"
    assert page.read_text() == text
    with pytest.raises(SystemExit, match=r"page\.md has no place for the table 'c'\.$"):
        script("harness").replace_tables(page, {"c": "| lost |"})
    assert page.read_text() == text


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem != "minirocket"))
def test_a_script_can_be_imported(name: str) -> None:
    """Its imports name what there is; `minirocket` runs in an environment of its own."""
    assert script(name).__doc__
