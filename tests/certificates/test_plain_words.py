"""Certificates in the words of a user: numbers are those of the certificate, and nothing is said without a proof."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from model_helpers import mark_fitted
from stablernn import Classifier
from stablernn.certificates.certificate import certify
from stablernn.certificates.certified_radius import certified_radii
from stablernn.certificates.plain_words import describe_guarantee, format_duration, format_size

BOUNDS: dict[str, Any] = {
    "output": "forecast",
    "reason": None,
    "unit": "data",
    "error": 1.0,
    "effects": [
        {"missing_after": 0, "output_change": 1.234},
        {"missing_after": 10, "output_change": 3.0},
        {"missing_after": None, "output_change": 3.71},
    ],
    "within_range": False,
    "irregular_time": False,
    "counted_samples": None,
    "forgotten_after": 9,
    "forgotten_share": 0.01,
}


def effects(*changes: float | None) -> list[dict[str, Any]]:
    return [{**effect, "output_change": change} for effect, change in zip(BOUNDS["effects"], changes, strict=True)]


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        (
            {},
            [
                "A value that is wrong by 1 moves no forecast by more than 1.3, or 3.8 if any number of missing values "
                "after it repeat it.",
                "It is forgotten 9 hours after the last wrong or missing value: from then on less than 1 % of the "
                "error is left in a forecast.",
            ],
        ),
        (
            {"error": None, "unit": "scales", "effects": effects(1.234, 3.0, 28.0), "forgotten_after": None},
            [
                "A value that is wrong by one standard deviation moves no forecast by more than 1.3 standard "
                "deviations, or 3 standard deviations if up to 10 missing values after it repeat it."
            ],
        ),
        (
            {"output": "class probability", "error": 6.02, "effects": effects(0.1199, 0.51, 1.0), "forgotten_after": 1},
            [
                "A value that is wrong by 6 moves no class probability by more than 0.12, as long as the value after "
                "it is not missing.",
                "It is forgotten 60 minutes after the last wrong or missing value: from then on it moves no class "
                "probability by more than 0.01.",
            ],
        ),
        (
            {"effects": effects(10.1, 20.0, None), "forgotten_after": 101},
            [
                "No useful bound is proved of how far a value that is wrong by 1 moves a forecast.",
                "That it is forgotten is proved only after 4.3 days, longer than the data.",
            ],
        ),
        (
            {"reason": "the scaling 'context' divides by recent values", "effects": effects(None, None, None)},
            [
                "How far a wrong value moves a forecast is not bounded, since the scaling 'context' divides by recent "
                "values.",
                "It is forgotten 9 hours after the last wrong or missing value: from then on it moves a forecast by "
                "less than 1 % of the recent change of the series.",
            ],
        ),
        (
            {"counted_samples": 300, "within_range": True, "forgotten_after": None},
            [
                "As long as values stay within the certified range, a value that is wrong by 1 moves no forecast of "
                "the next 13 days by more than 1.3, or 3.8 if any number of missing values after it repeat it."
            ],
        ),
        (
            {"output": "probability", "unit": "tokens", "error": None, "effects": effects(0.1199, None, 0.3)},
            [
                "A wrong token moves no probability by more than 0.12, and any number of them by no more than 0.3.",
                "It is forgotten 9 hours after the last wrong token: from then on it moves no probability by more than "
                "0.01.",
            ],
        ),
        (
            {"effects": effects(None, None, None), "forgotten_after": None},
            ["Nothing is proved of how far a wrong value moves a forecast, nor that it is forgotten."],
        ),
    ],
    ids=["data", "channels", "probability", "useless", "not derived", "non-expansive", "tokens", "nothing"],
)
def test_bounds_are_at_most_two_sentences(changes: dict[str, Any], sentences: list[str]) -> None:
    assert describe_guarantee(BOUNDS | changes, frequency="h", longest=100) == sentences


@pytest.mark.parametrize(
    ("samples", "frequency", "duration"),
    [
        (9, None, "9 samples"),
        (1, "15min", "15 minutes"),
        (200, "15min", "2.1 days"),
        (30, "D", "30 days"),
        (3, "W-SAT", "3 weeks"),
        (104, "W-SAT", "104 weeks"),
        (105, "W-SAT", "2.1 years"),
        (5, "MS", "5 months"),
        (9, "QE", "2.3 years"),
        (7, "B", "7 working days"),
        (7, "2", "14 steps"),
        (7, "lunar", "7 samples"),
        (7, "regular", "the time of 7 regular steps"),
    ],
)
def test_durations_are_in_the_unit_of_the_data_and_never_too_short(
    samples: int, frequency: str | None, duration: str
) -> None:
    assert format_duration(samples, frequency) == duration


@pytest.mark.parametrize("value", [1.249, 1.049, 9.96, 10.2, 99.7, 100.2, 12345.6, 0.00012345])
def test_a_bound_is_never_stated_smaller_than_it_is(value: float) -> None:
    stated = float(format_size(value).replace(",", ""))
    assert value <= stated <= 1.1 * value


def test_radii_from_the_bounds_of_a_certificate_are_the_same() -> None:
    torch.manual_seed(0)
    model = Classifier("exprnn", 2, 3, 6).eval()
    mark_fitted(model)
    x = torch.randn(5, 12, 2)
    certificate = certify(model)
    radii = certified_radii(model, x, layers=certificate.stacks)
    assert np.allclose(radii, certified_radii(model, x), rtol=1e-6)
