"""Settings of a run: configuration, defaults, and their resolution against the data."""
