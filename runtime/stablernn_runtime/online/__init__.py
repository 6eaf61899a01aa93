"""Estimates that a stream updates with each sample: adaptive intervals, and a test for drift. numpy only, no graphs."""
