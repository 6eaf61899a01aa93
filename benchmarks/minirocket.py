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
    # aeon's axes are (cases, channels, time); shorter series are padded with zeros.
    model.fit(np.nan_to_num(x).transpose(0, 2, 1), y)
    accuracy = float(np.mean(model.predict(np.nan_to_num(test_x).transpose(0, 2, 1)) == test_y))
    print(json.dumps({"accuracy": accuracy, "seconds": round(time.perf_counter() - began, 1)}))


if __name__ == "__main__":
    main()
