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
        from speed_model import Model

        self.model = Model(context.artifacts["onnx"])

    def predict(self, context: Any, model_input: np.ndarray, params: Any = None) -> np.ndarray:
        return self.model.run(np.asarray(model_input, np.float32))


if __name__ == "__main__":
    from speed_model import become

    folder = Path(tempfile.mkdtemp(dir=os.environ["SPEED_SCRATCH"])) / "model"
    mlflow.pyfunc.save_model(folder, python_model=__file__, artifacts={"onnx": sys.argv[1]}, pip_requirements=[])
    place = ("--port", sys.argv[2], "--host", "127.0.0.1")
    become(
        "mlflow", "models", "serve", "-m", str(folder), "--env-manager", "local", *place, UVICORN_LOG_LEVEL="warning"
    )
else:
    mlflow.models.set_model(Speed())
