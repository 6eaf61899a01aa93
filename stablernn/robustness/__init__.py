"""Robustness: what attacks and noise make of a classifier's accuracy, beside the radius within which nothing can."""
