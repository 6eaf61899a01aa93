"""Optimization: the trainer and the parts that it works with."""
