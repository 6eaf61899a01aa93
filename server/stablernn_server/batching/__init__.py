"""Dynamic batching: requests that wait for the same graph share one run of it."""
