"""Figures of runs and of data."""
