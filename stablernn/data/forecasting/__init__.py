"""Forecast data from tables: series, covariates, channels as series."""
