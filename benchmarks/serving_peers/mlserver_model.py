"""MLServer with a runtime of its own and adaptive batching, in one process."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from speed_model import MAX_BATCH, Model, arguments, become


class Speed(MLModel):
    async def load(self) -> bool:
        self.model = Model(os.environ["SPEED_MODEL"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        answer = self.model.run(NumpyCodec.decode_input(payload.inputs[0]))
        output = NumpyCodec.encode_output("probabilities", answer)
        return InferenceResponse(model_name=self.name, outputs=[output])


if __name__ == "__main__":
    path, port = arguments()
    folder = Path(tempfile.mkdtemp(dir=os.environ["SPEED_SCRATCH"]))
    ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
    server = {**ports, "host": "127.0.0.1", "parallel_workers": 0, "debug": False, "use_structured_logging": False}
    (folder / "settings.json").write_text(json.dumps(server))
    model = {"name": "speed", "implementation": "mlserver_model.Speed", "max_batch_size": MAX_BATCH}
    (folder / "model-settings.json").write_text(json.dumps({**model, "max_batch_time": 0.001}))
    become("mlserver", "start", str(folder), SPEED_MODEL=path)
