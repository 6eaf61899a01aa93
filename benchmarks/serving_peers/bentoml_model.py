"""BentoML with its adaptive batching, one worker."""

from __future__ import annotations

import os

import bentoml
import numpy as np
from speed_model import MAX_BATCH, Model, arguments, become


@bentoml.service(workers=1, traffic={"timeout": 30}, logging={"access": {"enabled": False}})
class Speed:
    def __init__(self) -> None:
        self.model = Model(os.environ["SPEED_MODEL"])

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH, max_latency_ms=1000)
    def infer(self, x: np.ndarray) -> np.ndarray:
        return self.model.run(x)


if __name__ == "__main__":
    path, port = arguments()
    words = ("serve", "bentoml_model:Speed", "--port", str(port), "--host", "127.0.0.1")
    become("bentoml", *words, SPEED_MODEL=path, BENTOML_DO_NOT_TRACK="True", BENTOML_HOME=os.environ["SPEED_SCRATCH"])
