"""MLflow's scoring server over a model saved as code."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import mlflow
import numpy as np


class Speed(mlflow.pyfunc.PythonModel):
    def load_context(self, context: Any) -> None:
        # MLflow imports this file by its path, from another folder.
        sys.path.insert(0, os.environ["SPEED_PEERS"])
        from speed_model import Model

        self.model = Model(context.artifacts["onnx"])

    def predict(self, context: Any, model_input: np.ndarray, params: Any = None) -> np.ndarray:
        return self.model.run(np.asarray(model_input, np.float32))


def main() -> None:
    path, port = sys.argv[1], sys.argv[2]
    folder = Path(tempfile.mkdtemp(dir=os.environ["SPEED_SCRATCH"])) / "model"
    mlflow.pyfunc.save_model(folder, python_model=__file__, artifacts={"onnx": path}, pip_requirements=[])
    program = Path(sys.executable).parent / "mlflow"
    words = ["models", "serve", "-m", str(folder), "--env-manager", "local", "--port", port, "--host", "127.0.0.1"]
    programs = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    os.execve(program, [str(program), *words], {**os.environ, "PATH": programs, "UVICORN_LOG_LEVEL": "warning"})


if __name__ == "__main__":
    main()
else:
    mlflow.models.set_model(Speed())
