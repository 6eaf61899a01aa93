"""StableClassifier as a classifier of aeon, which stores a sequence as (channels, time)."""

from aeon.classification.base import BaseClassifier

import stablernn as srn


class AeonClassifier(BaseClassifier):
    _tags = {
        "X_inner_type": "np-list",
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
    }

    def __init__(self, cell="lipschitz", max_steps=None, random_state=0):
        self.cell = cell
        self.max_steps = max_steps
        self.random_state = random_state
        super().__init__()

    def _fit(self, X, y):
        self.classifier_ = srn.StableClassifier(
            self.cell, max_steps=self.max_steps, random_state=self.random_state
        ).fit([sequence.T for sequence in X], y)
        return self

    def _predict(self, X):
        return self.classifier_.predict([sequence.T for sequence in X])

    def _predict_proba(self, X):
        return self.classifier_.predict_proba([sequence.T for sequence in X])
