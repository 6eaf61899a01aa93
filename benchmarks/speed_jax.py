"""The process in which ``benchmarks/speed.py`` runs JAX: a line on standard input is a run, one on output its times.

JAX has threads and an allocator of its own, and may need another NumPy, so it gets a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def main() -> None:
    try:
        import jax
        import jax.numpy as jnp
        import numpy as np
    except ModuleNotFoundError:
        return
    arrays = np.load(Path(sys.argv[1]) / "inputs.npz")
    recurrent, weight, bias = (jnp.asarray(arrays[name]) for name in ("recurrent", "weight", "bias"))
    linear = jnp.asarray(arrays["linear"]) if "linear" in arrays else None
    step_size, expected = float(arrays["step_size"]), arrays["expected"]

    def step(h: Any, drive: Any) -> tuple[Any, None]:
        velocity = jnp.tanh(h @ recurrent.T + drive)
        if linear is not None:
            velocity = velocity + h @ linear.T
        return h + step_size * velocity, None

    @jax.jit
    def run(x: Any, h: Any) -> Any:
        return jax.lax.scan(step, h, jnp.swapaxes(x, 0, 1) @ weight.T + bias)[0]

    x, h = jnp.asarray(arrays["x"]), jnp.zeros(expected.shape, jnp.float32)
    found = np.asarray(run(x[:, : int(arrays["compared_steps"])], h))
    print(json.dumps({"relative_error": float(abs(found - expected).max() / abs(expected).max())}), flush=True)
    run(x, h).block_until_ready()
    for _ in sys.stdin:
        started, started_cpu = time.perf_counter(), time.process_time()
        run(x, h).block_until_ready()
        wall, cpu = time.perf_counter() - started, time.process_time() - started_cpu
        print(json.dumps({"wall_ms": 1e3 * wall, "cpu_ms": 1e3 * cpu}), flush=True)


if __name__ == "__main__":
    main()
