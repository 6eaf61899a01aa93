"""Cross-validation of a StableForecaster in the form of neuralforecast and statsforecast."""

import pandas as pd

import stablernn as srn


def cross_validation(
    forecaster: srn.StableForecaster, df: pd.DataFrame, n_windows: int, step_size: int
) -> pd.DataFrame:
    """Return ``unique_id, ds, cutoff, y``, the mean forecast and the quantiles at the last ``n_windows`` origins."""
    times = df.groupby("unique_id")["ds"]
    age = times.rank(method="first", ascending=False) - 1  # steps from the end of each series
    first_origin = forecaster.horizon + (n_windows - 1) * step_size
    forecaster.fit(df[age >= first_origin])
    frames = []
    for window in range(n_windows):
        past = df[age >= first_origin - window * step_size]
        cutoff = past.groupby("unique_id")["ds"].max().rename("cutoff")
        frames.append(forecaster.predict(past).join(cutoff, on="unique_id"))
    forecasts = pd.concat(frames, ignore_index=True).rename(columns={"mean": type(forecaster).__name__})
    return forecasts.merge(df[["unique_id", "ds", "y"]], on=["unique_id", "ds"], how="left")
