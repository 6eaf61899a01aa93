"""Robustness of classifiers: accuracy under attacks and noise, certified radii and curvature of the loss."""
