"""NVIDIA Triton Inference Server as pytriton brings it, with its dynamic batcher and a Python function as the model."""

from __future__ import annotations

import os
import sysconfig

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from speed_model import MAX_BATCH, Model, arguments

# The stub that Triton starts must load this interpreter's library, not another of the same minor version.
libraries = [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH", "")]
os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))

path, port = arguments()
model = Model(path)


@batch
def infer(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"probabilities": model.run(x)}


config = TritonConfig(http_port=port, http_address="127.0.0.1", grpc_port=port + 1, metrics_port=port + 2)
with Triton(config=config, workspace=os.path.join(os.environ["SPEED_SCRATCH"], f"triton-{os.getpid()}")) as triton:
    triton.bind(
        model_name="speed",
        infer_func=infer,
        inputs=[Tensor(name="x", dtype=np.float32, shape=(-1, 1))],
        outputs=[Tensor(name="probabilities", dtype=np.float32, shape=(10,))],
        config=ModelConfig(max_batch_size=MAX_BATCH, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
        strict=False,
    )
    triton.serve()
