"""FastAPI with orjson and batching: the routes read the body themselves, no pydantic on the way."""

from __future__ import annotations

import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI, Request, Response
from speed_model import Batcher, Model, arguments, binary_answer, binary_input

path, port = arguments()
batcher = Batcher(Model(path))
app = FastAPI()


@app.get("/ready")
async def ready() -> None:
    return None


@app.post("/infer")
async def infer(request: Request) -> Response:
    body = await request.body()
    head = request.headers.get("inference-header-content-length")
    if head is not None:
        content, headers = binary_answer(await batcher.run(binary_input(body, int(head))))
        return Response(content, headers=headers, media_type="application/octet-stream")
    tensor = orjson.loads(body)["inputs"][0]
    answer = await batcher.run(np.array(tensor["data"], np.float32).reshape(tensor["shape"]))
    output = {"name": "probabilities", "datatype": "FP32", "shape": answer.shape, "data": answer.ravel()}
    content = orjson.dumps({"model_name": "speed", "outputs": [output]}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, media_type="application/json")


uvicorn.run(app, port=port, log_level="warning", access_log=False)
