"""Processor seconds of one training run by cause, as one JSON document on stdout.

    python benchmarks/time_by_cause.py train --data digits --cell antisymmetric --run-dir run

runs the command line in this process, with timers around the functions below. A second counts for the innermost of
them, so that the causes add up to the whole: the figures of a run that loads matplotlib hold that import too.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import sys
import time
from collections import defaultdict
from contextlib import redirect_stdout
from typing import Any

TRAINING = "stablernn.training"
CAUSES: dict[str, tuple[str, ...]] = {
    "reading the data": (f"{TRAINING}.train_model:load_run_data",),
    "settings and model": (
        f"{TRAINING}.train_model:resolve",
        f"{TRAINING}.train_model:create_model",
        f"{TRAINING}.train_model:_open_directory",
    ),
    "the optimizer's imports": (f"{TRAINING}.loop.trainer:build_optimizer",),
    "engine, forward": ("stablernn.engines.fused:FusedEngine.run", "stablernn.engines.base:LoopEngine.run"),
    "backward": ("torch:Tensor.backward",),
    "optimizer": ("torch.optim:AdamW.step",),
    "model around the engine, loss": (
        f"{TRAINING}.loop.trainer:Trainer._step",
        f"{TRAINING}.evaluation.torch_predictor:TorchPredictor.run_numpy",
    ),
    "trainer, minibatches": (f"{TRAINING}.loop.trainer:Trainer.fit",),
    "scores and baselines": (
        f"{TRAINING}.loop.trainer:Trainer._validate",
        f"{TRAINING}.tasks.classify:ClassifyTask.final_scores",
        f"{TRAINING}.tasks.forecast:ForecastTask.final_scores",
        f"{TRAINING}.tasks.forecast:ForecastTask.scorer",
    ),
    "calibration": (
        f"{TRAINING}.tasks.classify:ClassifyTask.calibrate",
        f"{TRAINING}.tasks.forecast:ForecastTask.calibrate",
    ),
    "certificates": (f"{TRAINING}.loop.certificate_log:prove", f"{TRAINING}.loop.certificate_log:stability_figures"),
    "checkpoints and records": (
        f"{TRAINING}.run_directory:RunDirectory.save",
        f"{TRAINING}.run_directory:RunDirectory.record",
    ),
    "figures": (
        f"{TRAINING}.train_model:draw_curves",
        f"{TRAINING}.tasks.classify:draw_confusion",
        f"{TRAINING}.tasks.classify:draw_reliability",
        f"{TRAINING}.tasks.forecast:draw_last_window",
    ),
}


class Stopwatch:
    """Processor seconds by cause, of which one runs at a time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._causes = ["rest"]
        self._since = 0.0

    def _switch(self) -> None:
        now = time.process_time()
        self.seconds[self._causes[-1]] += now - self._since
        self._since = now

    def start(self, cause: str) -> None:
        self._switch()
        self._causes.append(cause)

    def stop(self) -> None:
        self._switch()
        self._causes.pop()

    def time(self, cause: str, owner: Any, name: str) -> None:
        """Put a timer around a function of a module or a class."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            self.start(cause)
            try:
                return function(*arguments, **options)
            finally:
                self.stop()

        setattr(owner, name, timed)


def main() -> None:
    watch = Stopwatch()
    watch.start("import torch")
    importlib.import_module("torch")
    watch.stop()
    watch.start("other imports")
    run = importlib.import_module("stablernn_cli.main").run
    for cause, names in CAUSES.items():
        for name in names:
            module, _, path = name.partition(":")
            *owners, function = path.split(".")
            watch.time(cause, functools.reduce(getattr, owners, importlib.import_module(module)), function)
    watch.stop()
    with redirect_stdout(io.StringIO()):
        code = run(sys.argv[1:])
    watch.start("rest")
    if code:
        raise SystemExit(code)
    print(json.dumps({cause: round(seconds, 3) for cause, seconds in watch.seconds.items()}))


if __name__ == "__main__":
    main()
