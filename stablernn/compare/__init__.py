"""Comparison of cells and settings on several data sets, over seeds, in equal processor time."""

from __future__ import annotations

from stablernn.compare.run_comparison import Comparison, Contender, Problem, compare, parse_recipe

__all__ = ["Comparison", "Contender", "Problem", "compare", "parse_recipe"]
