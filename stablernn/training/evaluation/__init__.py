"""Scores of predictors, and the baselines that they are compared with."""
