"""StableForecaster as a forecaster of sktime.

The horizon is fixed when the forecaster is fitted, since a direct head answers all steps at once; fewer steps can be
asked for afterwards.
"""

import pandas as pd
from sktime.forecasting.base import BaseForecaster

import stablernn as srn


class SktimeForecaster(BaseForecaster):
    _tags = {
        "y_inner_mtype": "pd.Series",
        "requires-fh-in-fit": True,
        "capability:exogenous": False,
        "capability:missing_values": True,
    }

    def __init__(self, cell="lipschitz", context_length=None, max_steps=None):
        self.cell = cell
        self.context_length = context_length
        self.max_steps = max_steps
        super().__init__()
        self.set_config(remember_data=True)  # forecasts go on from the series, updates included

    def _fit(self, y, X, fh):
        horizon = int(max(fh.to_relative(self.cutoff)))
        self.forecaster_ = srn.StableForecaster(
            self.cell, horizon=horizon, context_length=self.context_length, max_steps=self.max_steps
        ).fit(self._series(y))
        return self

    def _predict(self, fh, X):
        forecast = self.forecaster_.predict(self._series(self._y))
        values = forecast if isinstance(self._y.index, pd.RangeIndex) else forecast["mean"].to_numpy()
        steps = fh.to_relative(self.cutoff).to_numpy() - 1
        return pd.Series(values[steps], index=fh.to_absolute_index(self.cutoff), name=self._y.name)

    def _series(self, y):
        return y.to_numpy() if isinstance(y.index, pd.RangeIndex) else y.rename(y.name or "y")
