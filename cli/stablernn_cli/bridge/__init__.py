"""Bridges from message brokers to streams of a version."""
