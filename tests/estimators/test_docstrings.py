"""The examples in the docstrings of estimators and of from_torch."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "stablernn.estimators.classifier",
        "stablernn.estimators.forecaster",
        "stablernn.estimators.stream",
        "stablernn.nn.from_torch",
        "stablernn.training.callbacks",
    ],
)
@pytest.mark.filterwarnings("ignore::stablernn.errors.UntrainedWarning")
def test_the_examples_run(module: str) -> None:
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted
    assert not results.failed
