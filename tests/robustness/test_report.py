"""The report: what its figures are, that they agree with each other, and the pictures drawn of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stablernn import Classifier
from stablernn.data.types import ClassificationData, SequenceSplit
from stablernn.errors import ConfigError
from stablernn.robustness.plots import write_report
from stablernn.robustness.report import robustness
from stablernn.robustness.settings import Settings

QUICK = Settings(linf_budgets=(0.01, 0.3, 1.0), l2_budgets=(0.001, 1.0, 4.0), steps=10, sequences=60, draws=2)


def split(count: int, seed: int) -> SequenceSplit:
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, count)
    x = (random.standard_normal((count, 12, 1)) * 2 + 7 + 3 * (2 * y[:, None, None] - 1)).astype(np.float32)
    lengths = random.integers(6, 13, count)
    x[np.arange(12) >= lengths[:, None]] = 0
    x[0, 2] = np.nan
    return SequenceSplit(x, lengths, y, tuple(map(str, range(count))))


@cache
def data() -> ClassificationData:
    return ClassificationData(
        "levels", ("high", "low"), ("value",), split(100, 0), split(20, 1), split(80, 2), {}, "sha256:0"
    )


@cache
def trained(scaling: str = "standard") -> Classifier:
    torch.manual_seed(0)
    model = Classifier("exprnn", 1, 2, 6, scaling=scaling, **({} if scaling == "standard" else {"window": 12}))
    model.fit_scaling(data().training_values())
    x, lengths, y = (torch.from_numpy(part) for part in (data().train.x, data().train.lengths, data().train.y))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x, lengths), y).backward()
        optimizer.step()
    return model.eval()


@cache
def report() -> dict[str, Any]:
    return robustness(trained(), data(), "test", QUICK)


def test_the_keys_of_the_report() -> None:
    found = report()
    assert (found["data"], found["split"], found["sequences"]) == ("levels", "test", 60)
    assert [(attack["name"], attack["norm"]) for attack in found["attacks"]] == [
        ("pgd", "linf"),
        ("pgd", "l2"),
        ("deepfool", "linf"),
        ("deepfool", "l2"),
    ]
    assert found["settings"]["linf_budgets"] == (0.01, 0.3, 1.0)
    assert set(found["noise"]) == {"white", "salt_and_pepper", "missing", "jitter"}
    assert found["hessian"]["sequences"] == 60
    assert found["certified"]["reason"] is None
    json.dumps(found, allow_nan=False)


def test_accuracy_falls_with_the_budget_and_never_below_what_is_certified() -> None:
    found = report()
    assert found["accuracy"] > 0.9
    for attack in found["attacks"]:
        curve = [found["accuracy"], *attack["accuracy"]]
        assert curve == sorted(curve, reverse=True)
        assert all(
            certified <= accuracy for certified, accuracy in zip(attack["certified"], attack["accuracy"], strict=True)
        )
        assert attack["certified"] == found["certified"][attack["norm"]]
        assert attack["accuracy"][-1] < 0.5
    assert found["certified"]["l2"][0] > 0.9


def test_the_median_radius_is_below_the_median_change_that_flips() -> None:
    found = report()
    medians = {
        attack["norm"]: attack["median_perturbation"] for attack in found["attacks"] if attack["name"] == "deepfool"
    }
    assert 0 < found["certified"]["median_radius"] <= medians["l2"]
    for norm in ("l2", "linf"):
        quantiles = found["certified"]["radius_quantiles"][norm]
        assert len(quantiles) == 21
        assert quantiles == sorted(quantiles)
        assert quantiles[10] <= medians[norm]


def test_a_model_without_radii_says_why() -> None:
    found = robustness(trained("window"), data(), "validation", replace(QUICK, hessian=False))
    assert "model.scaling=standard" in found["certified"]["reason"]
    assert found["certified"]["l2"] is None
    assert found["certified"]["median_radius"] is None
    assert all(attack["certified"] is None for attack in found["attacks"])
    assert found["sequences"] == 20
    assert found["hessian"] is None


def test_a_cell_that_no_gradient_passes_is_not_called_robust() -> None:
    model = Classifier("rocket", 1, 2, 84).eval()
    model.mark_fitted()
    with pytest.raises(ConfigError, match="none passes the cell 'rocket'"):
        robustness(model, data(), "test", QUICK)


def test_classes_in_another_order_are_the_models() -> None:
    used = replace(QUICK, hessian=False)
    turned = robustness(trained(), data(), "test", used, labels=("low", "high"))
    assert turned["accuracy"] == pytest.approx(1 - report()["accuracy"])


def test_the_pictures_are_there(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    for found in (report(), robustness(trained("window"), data(), "test", replace(QUICK, hessian=False))):
        written = write_report(tmp_path, found)
        assert [path.name for path in written] == ["robustness.json", "robustness.png", "noise.png"]
        assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000 for path in written[1:])
        assert json.loads(written[0].read_text())["accuracy"] == found["accuracy"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"linf_budgets": (0.2, 0.1)}, "increasing numbers greater than 0, got .*linf"),
        ({"l2_budgets": ()}, "increasing numbers greater than 0, got .*l2"),
        ({"l2_budgets": (math.inf,)}, "increasing numbers greater than 0"),
        ({"linf_budgets": (0.0, 0.1)}, "increasing numbers greater than 0"),
        ({"steps": 0}, "steps of a robustness report must be 1 or more, got 0"),
        ({"sequences": 0}, "sequences of a robustness report must be 1 or more, got 0"),
        ({"draws": 1}, "draws of a robustness report must be 2 or more, got 1"),
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Settings(**wrong)
