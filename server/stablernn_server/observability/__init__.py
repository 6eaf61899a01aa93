"""Metrics, statistics and traces."""
