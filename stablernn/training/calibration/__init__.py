"""Calibration after training: temperatures of probabilities, conformal offsets of quantiles."""
