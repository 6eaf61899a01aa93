"""Servers by hand: plain ASGI, the least that answers, or FastAPI, with orjson and batching; or FastAPI as it is mostly
written, with a pydantic body and one inference a request in its thread pool. The last word is the kind.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from speed_model import Batcher, Model, arguments, binary_answer, binary_input

path, port = arguments()
kind = sys.argv[3]
model = Model(path)
batcher = Batcher(model)
app = FastAPI()
HEAD = "inference-header-content-length"


class Tensor(BaseModel):
    """A tensor of a request."""

    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class Body(BaseModel):
    """A request."""

    inputs: list[Tensor]


async def batched(body: bytes, headers: Mapping[str, str]) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of an answer, by a batch."""
    if HEAD in headers:
        return binary_answer(await batcher.run(binary_input(body, int(headers[HEAD]))))
    tensor = orjson.loads(body)["inputs"][0]
    answer = await batcher.run(np.array(tensor["data"], np.float32).reshape(tensor["shape"]))
    output = {"name": "probabilities", "datatype": "FP32", "shape": answer.shape, "data": answer.ravel()}
    content = orjson.dumps({"model_name": "speed", "outputs": [output]}, option=orjson.OPT_SERIALIZE_NUMPY)
    return content, {"content-type": "application/json"}


async def answer_asgi(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer without a framework and without checks."""
    content, headers = b"", {"content-type": "application/json"}
    if scope["method"] == "POST":
        parts = []
        more = True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        given = {name.decode(): value.decode() for name, value in scope["headers"]}
        content, headers = await batched(b"".join(parts), given)
    headers = {"content-length": str(len(content)), **headers}
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": sent})
    await send({"type": "http.response.body", "body": content})


@app.get("/ready")
async def ready() -> None:
    """Say that it is ready."""


if kind == "batched":

    @app.post("/infer")
    async def infer_batched(request: Request) -> Response:
        """Read the body without pydantic."""
        content, headers = await batched(await request.body(), request.headers)
        return Response(content, headers=headers)

else:

    @app.post("/infer")
    def infer(body: Body) -> dict[str, object]:
        """Read the body by pydantic."""
        tensor = body.inputs[0]
        answer = model.run(np.array(tensor.data, np.float32).reshape(tensor.shape))
        output = {"name": "probabilities", "datatype": "FP32", "shape": answer.shape, "data": answer.ravel().tolist()}
        return {"model_name": "speed", "outputs": [output]}

    @app.post("/infer-binary")
    async def infer_binary(request: Request) -> Response:
        """Read the protocol's binary form."""
        x = binary_input(await request.body(), int(request.headers[HEAD]))
        content, headers = binary_answer(await run_in_threadpool(model.run, x))
        return Response(content, headers=headers)


chosen: Any = answer_asgi if kind == "asgi" else app
uvicorn.run(chosen, port=port, log_level="warning", access_log=False, lifespan="off")
