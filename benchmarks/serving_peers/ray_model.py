"""Ray Serve with one replica and its batching decorator."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import ray
from ray import serve
from speed_model import MAX_BATCH, Model, arguments
from starlette.requests import Request
from starlette.responses import Response

QUIET = {"log_level": "ERROR", "enable_access_log": False}


@serve.deployment(num_replicas=1, max_ongoing_requests=200, logging_config=QUIET)
class Speed:
    def __init__(self, path: str) -> None:
        self.model = Model(path)

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=0.001)
    async def run(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        return list(self.model.run_many(rows))

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        if request.headers.get("content-type") == "application/octet-stream":
            answer = await self.run(np.frombuffer(body, np.float32)[:, None])
            return Response(answer.tobytes(), media_type="application/octet-stream")
        values = json.loads(body)["x"]
        answer = await self.run(np.array(values, np.float32).reshape(len(values), -1))
        return Response(json.dumps({"probabilities": answer.tolist()}), media_type="application/json")


if __name__ == "__main__":
    path, port = arguments()
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", _temp_dir=os.environ["SPEED_SCRATCH"])
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config=QUIET)
    serve.run(Speed.bind(path), name="speed", route_prefix="/infer")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    ray.shutdown()
