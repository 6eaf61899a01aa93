"""KServe's Python server, which has no batching of its own."""

from __future__ import annotations

import logging
import sys
import uuid

import kserve
from kserve import InferOutput, InferRequest, InferResponse
from speed_model import Model, arguments


class Speed(kserve.Model):
    def __init__(self, path: str) -> None:
        super().__init__("speed")
        self.model = Model(path)
        self.ready = True

    def predict(self, payload: InferRequest, headers: object = None, response_headers: object = None) -> InferResponse:
        answer = self.model.run(payload.inputs[0].as_numpy())
        output = InferOutput("probabilities", list(answer.shape), "FP32")
        output.set_data_from_numpy(answer)
        # Without an id in the request its own answer fails its own check.
        identifier = payload.id or str(uuid.uuid4())
        return InferResponse(identifier, "speed", [output], requested_outputs=payload.request_outputs)


if __name__ == "__main__":
    path, port = arguments()
    sys.argv = sys.argv[:1]
    server = kserve.ModelServer(http_port=port, enable_grpc=False, workers=1, enable_latency_logging=False)
    logging.getLogger("uvicorn.access").addFilter(lambda record: False)
    server.start([Speed(path)])
