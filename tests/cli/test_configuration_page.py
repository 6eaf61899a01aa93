"""The page of all settings says what the code does."""

from __future__ import annotations

import re

import pytest

from generate_docs import configuration_page
from stablernn.data import load_data
from stablernn.training.resolve import resolve
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import load_config
from stablernn.training.tasks import task_for

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


@pytest.mark.parametrize("heading", ["To classify", "To forecast"])
def test_what_is_recommended_are_settings_without_a_default(heading: str) -> None:
    fields = {
        key: field
        for section in Config.model_fields.values()
        for key, field in getattr(section.annotation, "model_fields", {}).items()
    }
    named = [key for row in rows(heading) for key in re.findall(r"`(\w+)`", row[0])]
    assert len(named) >= 10
    assert [key for key in named if fields[key].default is not None] == []


def recommended(heading: str) -> dict[str, str]:
    return {row[0].replace("`", ""): row[1] for row in rows(heading)}


def test_the_recommendations_are_those_of_a_classification() -> None:
    config = resolve(load_config(overrides=["data.source=digits", "model.cell=gru"]), task_for(load_data("digits")))
    model, training, said = config.model, config.training, recommended("To classify")
    assert said["patch_stride"] == "the longest training sequence over 24, rounded"
    assert model.patch_stride == round(64 / 24)
    assert (model.patch_size, said["patch_size"]) == (4 * model.patch_stride, "4 strides")
    assert (model.patch_embedding, said["patch_embedding"]) == (model.hidden_size, "`hidden_size`")
    assert [f"`{model.readout}`", f"`{model.scaling}`"] == [said["readout"], said["scaling"]]
    assert str(model.head_dropout) == said["head_dropout"]
    assert f"{training.time_warp}, {training.jitter}, {training.rescale}" == said["time_warp, jitter, rescale"]
    assert training.calibrate


def test_the_recommendations_are_those_of_a_forecast() -> None:
    config = resolve(load_config(overrides=["data.source=co2", "model.cell=gru"]), task_for(load_data("co2")))
    model, training, said = config.model, config.training, recommended("To forecast")
    assert said["scaling"].startswith(f"`{model.scaling}`;")
    assert said["skip"].startswith(f"`{model.skip}` ")
    assert said["readout"] == f"`{model.readout}`"
    assert said["patch_size, patch_stride"] == "the divisor of the context nearest to the context over 14, both"
    assert model.patch_size == model.patch_stride == 8
    assert (model.season, model.log) == (52, False)
    assert (training.warm_up, said["warm_up"]) == (104, "one context")
    assert training.lr is not None
    assert training.skip_lr == training.lr / 30
    assert said["skip_lr"] == "a thirtieth of `lr`"
    assert training.calibrate
