"""Runs as their directories describe them: lists and comparisons, which need no torch."""
