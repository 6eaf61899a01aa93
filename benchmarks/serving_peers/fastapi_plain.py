"""FastAPI as it is mostly written by hand: a pydantic body, one inference a request, in FastAPI's thread pool."""

from __future__ import annotations

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from speed_model import Model, arguments, binary_answer, binary_input

path, port = arguments()
model = Model(path)
app = FastAPI()


class Tensor(BaseModel):
    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class Body(BaseModel):
    inputs: list[Tensor]


@app.get("/ready")
def ready() -> None:
    return None


@app.post("/infer")
def infer(body: Body) -> dict[str, object]:
    tensor = body.inputs[0]
    answer = model.run(np.array(tensor.data, np.float32).reshape(tensor.shape))
    output = {"name": "probabilities", "datatype": "FP32", "shape": list(answer.shape), "data": answer.ravel().tolist()}
    return {"model_name": "speed", "outputs": [output]}


@app.post("/infer-binary")
async def infer_binary(request: Request) -> Response:
    body = await request.body()
    x = binary_input(body, int(request.headers["inference-header-content-length"]))
    content, headers = binary_answer(await run_in_threadpool(model.run, x))
    return Response(content, headers=headers, media_type="application/octet-stream")


uvicorn.run(app, port=port, log_level="warning", access_log=False)
