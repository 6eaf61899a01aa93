"""The tasks: one adapter each, which knows its data, its model, its settings and its scores.

A new task is one file here, its data class, its model class, and a line in the table below.
"""

from __future__ import annotations

from stablernn.data.step_data import Data
from stablernn.training.tasks.classify import ClassifyTask
from stablernn.training.tasks.forecast import ForecastTask
from stablernn.training.tasks.predict_next import PredictNextTask
from stablernn.training.tasks.simulate import SimulateTask
from stablernn.training.tasks.task import Task

__all__ = ["Task", "task_for", "task_type"]

# Each adapter takes the data class of its own task, under whose name it stands here.
_TASKS: dict[str, type[Task]] = {
    "classify": ClassifyTask,
    "forecast": ForecastTask,
    "predict-next": PredictNextTask,
    "simulate": SimulateTask,
}


def task_type(name: str) -> type[Task]:
    """Return the adapter of a task, for what does not depend on data."""
    return _TASKS[name]


def task_for(data: Data) -> Task:
    """Return the task of loaded data."""
    return task_type(data.task)(data)
