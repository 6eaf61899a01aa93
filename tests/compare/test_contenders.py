"""Names and settings of a comparison: recipes, cells and data, and what is refused."""

from __future__ import annotations

import re

import pytest

from stablernn.compare.run_comparison import (
    Recipe,
    check_overrides,
    folder_name,
    make_contenders,
    make_problems,
    parse_recipe,
)
from stablernn.errors import ConfigError, UnknownNameError


@pytest.mark.parametrize("text", ["wide", "wide:", ": model.hidden_size=128", ""])
def test_a_recipe_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^A recipe is a name, a colon and settings, .* got '{re.escape(text)}'\.$"):
        parse_recipe(text)


@pytest.mark.parametrize(
    ("setting", "option"), [("model.cell=lru", "--cells"), ("training.seed=1", "--seeds"), ("data.source=x", "--data")]
)
def test_runs_differ_in_cell_seed_and_data_by_options_only(setting: str, option: str) -> None:
    key = setting.partition("=")[0]
    message = rf"^{key} is not a setting of all runs of a comparison\. Give {option} instead\.$"
    with pytest.raises(ConfigError, match=message):
        check_overrides(["training.lr=1", setting])
    with pytest.raises(ConfigError, match=message):
        parse_recipe(f"mine: {setting}")


def test_each_cell_is_trained_with_each_recipe() -> None:
    assert [contender.name for contender in make_contenders(["lru", "gru"], [])] == ["lru", "gru"]
    recipes = [Recipe("a", ("training.lr=1",)), Recipe("b", ("training.lr=2",))]
    names = [contender.name for contender in make_contenders(["lru", "gru"], recipes)]
    assert names == ["lru, a", "lru, b", "gru, a", "gru, b"]


def test_unknown_cells_and_repeated_recipes() -> None:
    with pytest.raises(UnknownNameError, match=r"^Unknown cell 'lsm'"):
        make_contenders(["lsm"], [])
    with pytest.raises(ConfigError, match=r"^Two recipes have one name\. Got a, a\.$"):
        make_contenders(["lru"], [Recipe("a"), Recipe("a")])


def test_problems_have_short_names_unless_these_are_equal() -> None:
    problems = make_problems(["digits", "data/GunPoint_TRAIN.ts", "a/load.csv.gz", "b/load.csv"])
    assert [problem.name for problem in problems] == ["digits", "GunPoint", "a/load.csv.gz", "b/load.csv"]
    names = {folder_name(problem, make_contenders(["lru"], [Recipe("a b")])[0], 3) for problem in problems}
    assert names == {f"{stem}-lru_a_b-3" for stem in ("digits", "GunPoint", "a_load.csv.gz", "b_load.csv")}
    with pytest.raises(ConfigError, match=r"^The data set 'digits' is given twice\."):
        make_problems(["digits", "digits"])
    with pytest.raises(ConfigError, match=r"^A comparison needs data\."):
        make_problems([])
