"""The page of all settings says what the code does."""

from __future__ import annotations

import re

import pytest

from generate_docs import configuration_page
from stablernn.training.settings.config import Config

PAGE = configuration_page()


def rows(heading: str) -> list[list[str]]:
    section = re.split(r"^#+ ", PAGE.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


@pytest.mark.parametrize("name", list(Config.model_fields))
def test_every_key_stands_there_with_its_meaning(name: str) -> None:
    section = Config.model_fields[name].annotation
    assert section is not None
    found = rows(f"`{name}`")
    assert [row[0] for row in found] == [f"`{key}`" for key in section.model_fields]
    assert [row for row in found if len(row) != 5 or not row[2] or not row[4]] == []
