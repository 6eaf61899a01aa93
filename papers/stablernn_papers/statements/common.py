"""Figures and names that statements of several papers share."""

from __future__ import annotations

from stablernn_papers.statements.evidence import Figure


def accuracy(table: str, data: str) -> tuple[Figure]:
    """Return the accuracy on the test split."""
    return (Figure(table, data, "test.accuracy", percent=True),)


def loss(table: str, data: str, name: str) -> tuple[Figure]:
    """Return a score on the test split of which lower values are better."""
    return (Figure(table, data, f"test.{name}", is_lower_better=True),)
