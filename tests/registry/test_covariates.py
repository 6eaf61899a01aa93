"""Covariates of a forecast in a manifest: their names match, or one sentence says why not."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stablernn_registry import ManifestError, ManifestFields

WEEK = {"name": "week", "period": 604800.0, "phase": 345600.0}
WAVES = ["calendar_week_sin", "calendar_week_cos"]
FORECAST: dict[str, Any] = {
    "task": "forecast",
    "cell": "lipschitz",
    "signature": {},
    "features": ["y", "promo", *WAVES],
    "targets": ["y"],
    "horizon": 6,
    "head": "recursive",
    "future": ["promo", *WAVES],
    "static": ["size"],
    "calendar": [WEEK],
}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"future": ["price", *WAVES]},
            "'price' is known in advance and must be in features, which does not have it",
        ),
        (
            {"future": ["promo"]},
            "'calendar_week_sin' is known in advance and must be in future, which does not have it",
        ),
        ({"head": "looped"}, "field 'head': input should be 'direct' or 'recursive', got 'looped'"),
        ({"static": ["size", "size"]}, "field 'static': the names must differ, got 'size' twice"),
        (
            {"calendar": [{**WEEK, "period": 0.0}]},
            "field 'calendar.0.period': input should be greater than 0, got 0.0",
        ),
        (
            {"task": "classify", "labels": ["a", "b"]},
            "head is for the task 'forecast', got task 'classify'",
        ),
    ],
)
def test_a_manifest_that_does_not_fit_itself_cannot_be_written(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(sentence)):
        ManifestFields.parse({**FORECAST, **change})
