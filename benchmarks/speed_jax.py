"""The process in which ``benchmarks/speed.py`` runs JAX: a line on standard input is a run, one on output its times.

JAX has threads and an allocator of its own, and may need another NumPy, so it gets a process of its own. It runs the
last state of a batch of sequences, or, where there are labels, a training step.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
LEARNING_RATE, FIRST_DECAY, SECOND_DECAY, EPSILON = 1e-3, 0.9, 0.999, 1e-8
"""The defaults of torch's Adam."""


def last_state(jax: Any, arrays: Any, parameters: dict[str, Any], x: Any) -> Any:
    """Return the state after the last step of ``x``, ``(batch, time, 1)``; see ``StepForm`` for the families."""
    jnp = jax.numpy
    family, step_size = str(arrays["family"]), float(arrays["step_size"])
    activate = {"tanh": jnp.tanh, "relu": jax.nn.relu}[str(arrays["nonlinearity"])]
    recurrent, linear = parameters["recurrent"], parameters.get("linear")

    def velocity(h: Any, drive: Any) -> Any:
        value = activate(h @ recurrent.T + drive)
        return value if linear is None else value + h @ linear.T

    def step(h: Any, drive: Any) -> tuple[Any, None]:
        if family == "plain":
            return velocity(h, drive), None
        if family == "two-stage":
            return h + step_size * velocity(h + step_size / 2 * velocity(h, drive), drive), None
        if family == "shared gate":
            product = h @ recurrent.T
            gate, candidate = jnp.split(drive, 2, axis=-1)
            return h + step_size * jax.nn.sigmoid(product + gate) * activate(product + candidate), None
        return h + step_size * velocity(h, drive), None

    first = jnp.zeros((len(x), len(recurrent)), jnp.float32)
    return jax.lax.scan(step, first, jnp.swapaxes(x, 0, 1) @ parameters["weight"].T + parameters["bias"])[0]


def make_training(jax: Any, arrays: Any, parameters: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the gradient of the loss as a function of parameters and ``x``, and a step of Adam on ``x``."""
    jnp, labels = jax.numpy, jax.numpy.asarray(arrays["labels"])

    def loss(parameters: dict[str, Any], x: Any) -> Any:
        h = last_state(jax, arrays, parameters, x)
        logits = jax.nn.log_softmax(h @ parameters["head_weight"].T + parameters["head_bias"])
        return -jnp.take_along_axis(logits, labels[:, None], axis=1).mean()

    @jax.jit
    def update(state: Any, x: Any) -> Any:
        parameters, first, second, count = state
        _, gradient = jax.value_and_grad(loss)(parameters, x)
        count = count + 1
        first = jax.tree.map(lambda m, g: FIRST_DECAY * m + (1 - FIRST_DECAY) * g, first, gradient)
        second = jax.tree.map(lambda v, g: SECOND_DECAY * v + (1 - SECOND_DECAY) * g * g, second, gradient)

        def move(p: Any, m: Any, v: Any) -> Any:
            root = jnp.sqrt(v / (1 - SECOND_DECAY**count)) + EPSILON
            return p - LEARNING_RATE * m / (1 - FIRST_DECAY**count) / root

        return jax.tree.map(move, parameters, first, second), first, second, count

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    state = (parameters, zeros, zeros, jnp.float32(0))

    def train(x: Any) -> None:
        nonlocal state
        state = jax.block_until_ready(update(state, x))

    return jax.jit(jax.grad(loss)), train


def run_blocking(jax: Any, function: Callable[[Any], Any], x: Any) -> None:
    jax.block_until_ready(function(x))


def relative_error(values: Any, expected: Any) -> float:
    """Return the largest difference of two arrays as a share of the largest entry."""
    return float(abs(values - expected).max() / abs(expected).max())


def main() -> None:
    processors = os.sched_getaffinity(0)
    # JAX starts as many threads as it may use processors, whatever the flags say of those of its products.
    os.sched_setaffinity(0, {max(processors)})
    try:
        import jax
        import jax.numpy as jnp
        import numpy as np
    except ModuleNotFoundError:
        return
    jax.devices()
    os.sched_setaffinity(0, processors)
    arrays = dict(np.load(Path(sys.argv[1]) / "inputs.npz"))
    names = ("recurrent", "linear", "weight", "bias", "head_weight", "head_bias")
    parameters = {name: jnp.asarray(arrays[name]) for name in names if name in arrays}
    x = jnp.asarray(arrays["x"])
    compared = x[:, : int(arrays["compared_steps"])]
    infer = jax.jit(lambda x: last_state(jax, arrays, parameters, x))
    errors = [relative_error(np.asarray(infer(compared)), arrays["expected"])]

    run: Callable[[Any], object] = functools.partial(run_blocking, jax, infer)
    if "labels" in arrays:
        gradient, run = make_training(jax, arrays, parameters)
        recurrent = np.asarray(gradient(parameters, compared)["recurrent"])
        errors.append(relative_error(recurrent, arrays["expected_gradient"]))
    print(json.dumps({"relative_error": max(errors)}), flush=True)
    run(x)
    for _ in sys.stdin:
        started, started_cpu = time.perf_counter(), time.process_time()
        run(x)
        wall, cpu = time.perf_counter() - started, time.process_time() - started_cpu
        print(json.dumps({"wall_ms": 1e3 * wall, "cpu_ms": 1e3 * cpu}), flush=True)


if __name__ == "__main__":
    main()
