"""Choice of a model's settings by its training data: `stablernn train` without a cell."""

from __future__ import annotations

from stablernn.training.search.budget import Budget
from stablernn.training.search.ladder import Choice, choose_settings

__all__ = ["Budget", "Choice", "choose_settings"]
