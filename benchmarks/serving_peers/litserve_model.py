"""LitServe with batching in one worker process."""

# No `from __future__ import annotations`: LitServe reads the annotations below to learn what a request is.
from typing import Any

import litserve
import numpy as np
from speed_model import MAX_BATCH, Model, arguments


class Speed(litserve.LitAPI):
    path = ""

    def setup(self, device: str) -> None:
        self.model = Model(self.path)

    def decode_request(self, request: dict[str, Any]) -> np.ndarray:
        return np.array(request["x"], np.float32).reshape(len(request["x"]), -1)

    def batch(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        return inputs

    def predict(self, x: list[np.ndarray]) -> np.ndarray:
        return self.model.run_many(x)

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        return list(output)

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        return {"probabilities": output.tolist()}


if __name__ == "__main__":
    path, port = arguments()
    api = Speed(max_batch_size=MAX_BATCH, batch_timeout=0.001)
    api.path = path
    server = litserve.LitServer(api, accelerator="cpu", fast_queue=True)
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False)
