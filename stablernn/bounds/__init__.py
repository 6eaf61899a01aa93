"""Bounds on one step of a cell that hold for all states and inputs; numpy and scipy only, below the cells."""
