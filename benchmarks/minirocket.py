"""MiniRocket with a ridge classifier on one problem, in an environment with aeon: ``minirocket.py DATA.npz SEED``.

Dempster, Schmidt, Webb: MiniRocket (KDD 2021). Called by ``accuracy.py``.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from aeon.classification.convolution_based import MiniRocketClassifier


def main() -> None:
    with np.load(sys.argv[1], allow_pickle=False) as data:
        x, y, test_x, test_y = (data[name] for name in ("x", "y", "test_x", "test_y"))
    began = time.perf_counter()
    model = MiniRocketClassifier(random_state=int(sys.argv[2]))
    longest = max(x.shape[1], test_x.shape[1])
    model.fit(cases(x, longest), y)
    accuracy = float(np.mean(model.predict(cases(test_x, longest)) == test_y))
    print(json.dumps({"accuracy": accuracy, "seconds": round(time.perf_counter() - began, 1)}))


def cases(x: np.ndarray, longest: int) -> np.ndarray:
    """Sequences ``(cases, time, channels)`` padded with 0, in aeon's axes ``(cases, channels, time)``."""
    padded = np.pad(np.nan_to_num(x), ((0, 0), (0, longest - x.shape[1]), (0, 0)))
    return padded.transpose(0, 2, 1)


if __name__ == "__main__":
    main()
