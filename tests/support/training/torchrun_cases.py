"""Short trainings in float64, for one process or several: ``torchrun ... torchrun_cases.py FOLDER``.

Each process writes the weights and the last gradients of each case into ``FOLDER/RANK-CASE.safetensors``.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed import distributed_c10d

from stablernn.data import ClassificationData, ForecastData, SequenceSplit, Series
from stablernn.data.step_data import Data, StepData, StoredSteps
from stablernn.training.build import certified_range, create_model
from stablernn.training.evaluation.scorers import Scores
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop import trainer
from stablernn.training.loop.base_trainer import NoRecorder
from stablernn.training.loop.launch import read_launch
from stablernn.training.loop.minibatches import Batch, Minibatch, Minibatches
from stablernn.training.loop.process_group import ProcessGroup, open_group
from stablernn.training.resolve import resolve
from stablernn.training.settings.load import load_config
from stablernn.training.tasks import task_for

CPU = torch.device("cpu")
CLASSIFY = {"model.scaling": "standard", "model.patch_size": 1, "model.patch_embedding": 0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    # Ten sequences in batches of three: the last batch of an epoch has one row, so that a process has none.
    "classify": (
        "classify",
        {
            "model.cell": "rnn",
            "training.class_weights": "balanced",
            "training.jitter": 0.1,
            "training.time_warp": 0.03,
            "model.head_dropout": 0.3,
        },
    ),
    "mixup": ("classify", {"model.cell": "gru", "training.mixup": 0.5, "training.class_weights": "balanced"}),
    "members": ("classify", {"model.cell": "antisymmetric", "model.members": 2, "training.clip_norm": 0.1}),
    "forecast": ("forecast", {"model.cell": "lipschitz", "training.warm_up": 3}),
    "segments": ("predict-next", {"model.cell": "lstm", "training.bptt_steps": 3, "training.clip_norm": 0.5}),
    # Hooks that change parameters after a step.
    "exprnn": ("classify", {"model.cell": "exprnn"}),
    "dtriv": ("classify", {"model.cell": "dtriv", "model.cell_options.rebase": 3}),
    "nais_net": ("classify", {"model.cell": "nais_net", "training.lr": 0.3}),
    "fastgrnn": ("classify", {"model.cell": "fastgrnn", "model.cell_options.recurrent_kept": 0.5}),
    "indrnn": ("classify", {"model.cell": "indrnn"}),
    "penalty": ("classify", {"model.cell": "soft_orth"}),
    "certified": ("classify", {"model.cell": "lipschitz", "training.certified": True, "training.lr": 0.3}),
    # Draws that each process makes by itself.
    "rank-rng": ("classify", {"model.cell": "noisy_rnn", "model.num_layers": 2, "model.dropout": 0.3}),
    "certified-lstm": ("classify", {"model.cell": "lstm", "training.certified": True, "training.lr": 0.3}),
    # Batches of four, so that each of two processes has half of each.
    "halves": ("classify", {"model.cell": "gru", "training.batch_size": 4}),
}
STEPS = 9


class DoubleMinibatches(Minibatches):
    """Minibatches in float64, in which two ways to sum up differ by rounding far below any mistake."""

    def __init__(self, minibatches: Minibatches) -> None:
        self._minibatches = minibatches
        self.steps = minibatches.steps

    def shuffle(self, generator: torch.Generator) -> None:
        self._minibatches.shuffle(generator)

    def take(self, number: int) -> Minibatch:
        minibatch = self._minibatches.take(number)
        fields: dict[str, Any] = minibatch.batch._asdict()
        fields |= {
            name: field.double()
            for name, field in fields.items()
            if isinstance(field, Tensor) and field.is_floating_point()
        }
        return minibatch._replace(batch=Batch(**fields))


def classification() -> ClassificationData:
    random = np.random.default_rng(0)

    def split(samples: int) -> SequenceSplit:
        x = random.normal(size=(samples, 8, 2)).astype(np.float32)
        lengths = random.integers(3, 9, samples)
        x[np.arange(8) >= lengths[:, None]] = 0
        y = (np.arange(samples) % 3 == 0).astype(np.int64)
        return SequenceSplit(x, lengths, y, tuple(map(str, range(samples))))

    return ClassificationData("toy", ("no", "yes"), ("a", "b"), split(10), split(6), None, {}, "sha256:0")


def forecast() -> ForecastData:
    random = np.random.default_rng(1)
    values = [random.normal(size=(60, 2)).astype(np.float32) for _ in range(2)]
    # Shares of a batch have different numbers of targets.
    values[0][20:29, 0] = np.nan
    return ForecastData(
        name="toy",
        series=tuple(Series(f"s{number}", np.arange(60), part) for number, part in enumerate(values)),
        channels=("x", "y"),
        targets=("x",),
        frequency="1",
        season=3,
        horizon=3,
        context_length=6,
        validation_steps=6,
        test_steps=9,
        notes={},
        fingerprint="",
    )


def sequences() -> StepData:
    random = np.random.default_rng(2)

    def split() -> StoredSteps:
        inputs = [random.normal(2.0, 1.0, (length, 2)).astype(np.float32) for length in (7, 3, 5, 7, 1, 10, 4)]
        targets = [np.concatenate([x[1:], np.full((1, 2), np.nan, np.float32)]) for x in inputs]
        return StoredSteps(inputs, targets)

    names = ("left", "right")
    return StepData(
        "frames", "real", False, names, names, split(), split(), split(), continuous=False, headline="mse", notes={},
        fingerprint="sha256:0",
    )  # fmt: skip


DATA = {"classify": classification, "forecast": forecast, "predict-next": sequences}


def run_case(name: str, processes: ProcessGroup | None = None) -> dict[str, Tensor]:
    """Train a case, and return its weights and the gradients of the last step."""
    task_name, overrides = CASES[name]
    data: Data = DATA[task_name]()
    settings = {
        "data.source": "toy",
        "model.hidden_size": 5,
        "model.engine": "loop",
        "training.batch_size": 3,
        "training.max_steps": STEPS,
        "training.lr": 0.02,
        "training.certified": False,
        **(CLASSIFY if task_name == "classify" else {}),
        **overrides,
    }
    task = task_for(data)
    config = resolve(load_config(overrides=[f"{key}={_text(value)}" for key, value in settings.items()]), task)
    torch.manual_seed(3)
    model = create_model(config, data).double()
    fitted = trainer.Trainer(
        model,
        DoubleMinibatches(task.minibatches(model, config.training)),
        task.objective(config.training),
        # Validation is in float32, and not what is compared here.
        EmptyScorer(),
        config.training,
        NoRecorder(),
        inputs=certified_range(data, model) if config.training.certified else None,
        processes=processes,
    )
    fitted.fit()
    gradients = {f"gradient.{key}": value.grad for key, value in model.named_parameters() if value.grad is not None}
    state = {key: value.clone().contiguous() for key, value in model.state_dict().items()}
    carried = fitted.checkpoint().group("carried")
    return state | gradients | {f"carried.{key}": value.contiguous() for key, value in carried.items()}


class EmptyScorer:
    """A scorer of an empty split."""

    samples = 0

    def __init__(self) -> None:
        self.naive: dict[str, Any] = {}

    def score_of(self, predictor: TorchPredictor) -> Scores:
        raise NotImplementedError


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def refuse_pickle() -> None:
    """Fail where a process would pickle what it sends, or unpickle what it receives."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("Processes exchange no pickles.")

    for name in ("dump", "dumps", "load", "loads"):
        setattr(pickle, name, refuse)
    # What the object collectives of torch use.
    distributed_c10d._pickler = distributed_c10d._unpickler = refuse  # type: ignore[attr-defined]


def main() -> None:
    refuse_pickle()
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    # Processes agree to save after every other step, for which the first one gathers the states of all.
    trainer.SAVE_SECONDS = 0.0
    launch = read_launch()
    with open_group(launch, CPU) as processes:
        for name in CASES:
            tensors = {key: value.clone() for key, value in run_case(name, processes).items()}
            save_file(tensors, folder / f"{launch.rank}-{name}.safetensors")


if __name__ == "__main__":
    main()
