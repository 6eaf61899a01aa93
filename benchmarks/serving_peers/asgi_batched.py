"""Plain ASGI with orjson and batching: no framework, no checks, the least that answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import uvicorn
from speed_model import Batcher, Model, arguments, binary_answer, binary_input

path, port = arguments()
batcher = Batcher(Model(path))


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    content, headers = b"", {"content-type": "application/json"}
    if scope["method"] == "POST":
        parts = []
        more = True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = b"".join(parts)
        head = dict(scope["headers"]).get(b"inference-header-content-length")
        if head is not None:
            content, headers = binary_answer(await batcher.run(binary_input(body, int(head))))
        else:
            tensor = orjson.loads(body)["inputs"][0]
            answer = await batcher.run(np.array(tensor["data"], np.float32).reshape(tensor["shape"]))
            output = {"name": "probabilities", "datatype": "FP32", "shape": answer.shape, "data": answer.ravel()}
            content = orjson.dumps({"model_name": "speed", "outputs": [output]}, option=orjson.OPT_SERIALIZE_NUMPY)
    sent = [(b"content-length", str(len(content)).encode())]
    sent += [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": sent})
    await send({"type": "http.response.body", "body": content})


uvicorn.run(app, port=port, log_level="warning", access_log=False, lifespan="off")
