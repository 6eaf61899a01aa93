"""Requests that wait for the same graph run through it together."""
