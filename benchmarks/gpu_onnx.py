"""An exported graph by ONNX Runtime with CUDA and bound buffers, for ``benchmarks/gpu.py``."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from gpu import NotMeasured

import stablernn as srn

SIZES = ((1, 784, 128), (32, 784, 128), (256, 784, 128))
SMALL_SIZES = ((2, 5, 8),)
ROUNDS = 7


def measure(has_cuda: bool) -> dict[str, Any]:
    """Return milliseconds of a batch of sequences, and the difference from torch on the CPU.

    Raises:
        NotMeasured: If there is a GPU, and ONNX Runtime is built without CUDA.
        RuntimeError: If a session does not run by the provider that was asked for.
    """
    provider = "CUDAExecutionProvider" if has_cuda else "CPUExecutionProvider"
    if provider not in ort.get_available_providers():
        raise NotMeasured(f"ONNX Runtime {ort.__version__} has no {provider}: pip install 'stablernn[cuda]'.")
    if has_cuda:
        ort.preload_dlls()
    sizes = SIZES if has_cuda else SMALL_SIZES
    with tempfile.TemporaryDirectory() as place:
        model = srn.Classifier("antisymmetric", 1, 10, sizes[0][2]).eval()
        srn.export(model, Path(place))
        options = ort.SessionOptions()
        options.log_severity_level = 3
        # As in the server: TF32, the default of the provider, rounds operands to 10 bits, which 784 steps add up.
        settings = {"use_tf32": "0"} if has_cuda else {}
        session = ort.InferenceSession(str(Path(place) / "sequence.onnx"), options, providers=[(provider, settings)])
        # ONNX Runtime takes the CPU without an error where CUDA's libraries do not load.
        if session.get_providers()[0] != provider:
            raise RuntimeError(f"ONNX Runtime took {session.get_providers()[0]} in place of {provider}.")
        rows = [_time(session, model, batch, steps, has_cuda) for batch, steps, _ in sizes]
    return {"provider": provider, "rounds": ROUNDS, "rows": rows}


def _time(session: ort.InferenceSession, model: Any, batch: int, steps: int, has_cuda: bool) -> dict[str, Any]:
    x = torch.randn(batch, steps, 1)
    binding, device = session.io_binding(), "cuda" if has_cuda else "cpu"
    values = {"x": x.numpy(), "lengths": np.full(batch, steps, dtype=np.int64)}
    for argument in session.get_inputs():
        array = values.get(argument.name)
        if array is None:
            # The first state; it is zero, and a flag that a sequence begins is too.
            array = np.zeros([batch if isinstance(size, str) else size for size in argument.shape], np.float32)
        binding.bind_ortvalue_input(argument.name, ort.OrtValue.ortvalue_from_numpy(array, device, 0))
    for result in session.get_outputs():
        binding.bind_output(result.name, device)
    times = []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        times.append(1e3 * (time.perf_counter() - started))
    names = [result.name for result in session.get_outputs()]
    logits = dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))["logits"]
    with torch.no_grad():
        expected, _ = model.run(x)
    reference = expected["logits"].numpy()
    difference = float(np.abs(logits - reference).max() / np.abs(reference).max())
    return {"B": batch, "T": steps, "ms": round(statistics.median(times[1:]), 3), "error": float(f"{difference:.2g}")}
