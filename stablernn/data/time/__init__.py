"""Regular time grids, their frequencies, and timestamps that are numbers."""
