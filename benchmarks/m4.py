"""The M4 competition's measures (Makridakis, Spiliotis, Assimakopoulos, 2020): sMAPE, MASE, and OWA against Naive2."""

from __future__ import annotations

import numpy as np

PUBLISHED_NAIVE2 = {"smape": 18.383, "mase": 2.395}
"""Averages of Naive2 over the 414 hourly series, as the competition gives them: what ``naive2`` must reproduce."""


def smape(truth: np.ndarray, forecast: np.ndarray) -> float:
    """Symmetric mean absolute percentage error of one series, 0 to 200."""
    return float(np.mean(200 * np.abs(truth - forecast) / (np.abs(truth) + np.abs(forecast))))


def mase(truth: np.ndarray, forecast: np.ndarray, history: np.ndarray, season: int) -> float:
    """Mean absolute error in units of the seasonal naive forecast's within the history."""
    return float(np.mean(np.abs(truth - forecast)) / np.mean(np.abs(history[season:] - history[:-season])))


def naive2(history: np.ndarray, horizon: int, season: int) -> np.ndarray:
    """The last value, seasonally adjusted where a test on the autocorrelation (90 %) finds a season."""
    if not _is_seasonal(history, season):
        return np.full(horizon, history[-1])
    factors = _seasonal_factors(history, season)
    ahead = (len(history) + np.arange(horizon)) % season
    return np.asarray(history[-1] / factors[(len(history) - 1) % season] * factors[ahead])


def owa(scores: dict[str, float]) -> float:
    """Overall weighted average: the mean of sMAPE and MASE, each over that of Naive2."""
    return float(np.mean([scores[name] / PUBLISHED_NAIVE2[name] for name in PUBLISHED_NAIVE2]))


def averages(truths: np.ndarray, forecasts: np.ndarray, histories: list[np.ndarray], season: int) -> dict[str, float]:
    """Means over the series of ``smape`` and ``mase``, and their ``owa``."""
    pairs = list(zip(truths, forecasts, histories, strict=True))
    scores = {
        "smape": float(np.mean([smape(truth, forecast) for truth, forecast, _ in pairs])),
        "mase": float(np.mean([mase(*pair, season) for pair in pairs])),
    }
    return {**scores, "owa": owa(scores)}


def _is_seasonal(history: np.ndarray, season: int) -> bool:
    if len(history) < 3 * season:
        return False
    centred = history - history.mean()
    power = np.sum(centred**2)
    correlations = np.array([np.sum(centred[lag:] * centred[:-lag]) / power for lag in range(1, season + 1)])
    limit = 1.645 * np.sqrt((1 + 2 * np.sum(correlations[:-1] ** 2)) / len(history))
    return bool(abs(correlations[-1]) > limit)


def _seasonal_factors(history: np.ndarray, season: int) -> np.ndarray:
    """Factors of the classical multiplicative decomposition, 1 on average."""
    weights = np.ones(season + 1 - season % 2)
    if season % 2 == 0:
        weights[[0, -1]] = 0.5
    half = len(weights) // 2
    trend = np.full(len(history), np.nan)
    trend[half : len(history) - half] = np.convolve(history, weights / season, "valid")
    ratios = history / trend
    factors = np.array([np.nanmean(ratios[phase::season]) for phase in range(season)])
    return np.asarray(factors / factors.mean())
