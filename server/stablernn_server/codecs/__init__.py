"""Bytes to arrays and back. Knows no models."""
