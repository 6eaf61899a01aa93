"""Predictions as files: of one file, and of a folder of them by several processes."""
