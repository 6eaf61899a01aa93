"""The run directory: one training run as files, written so that a stop at any moment leaves a run that can go on.

``config.yaml`` (resolved settings), ``env.json``, ``data.json``, ``metrics.jsonl`` (a line an epoch), ``checkpoints/``
(``best`` and ``last``, and one of each epoch where they are kept), ``plots/`` and, when the run is done,
``calibration.json`` (what was fitted to the validation split, where anything was) and ``summary.json``.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from stablernn.atomic_files import read_json, to_json_types, write_bytes, write_json
from stablernn.certificates.certificate import prove
from stablernn.data import ClassificationData, ForecastData, load_data
from stablernn.data.catalog import is_dataset
from stablernn.data.forecasting.covariates import calendar_periods
from stablernn.data.readers.paths import is_table
from stablernn.data.sequences import has_feature_names
from stablernn.data.split_merging import class_weights, without_validation
from stablernn.data.step_data import StepData
from stablernn.data.time.frequency import parse_frequency
from stablernn.data.types import score_notes
from stablernn.errors import CheckpointError, ConfigError, DataError, InterruptedRun, TrainingError
from stablernn.nn.models import Classifier, Forecaster, SequenceModel, build_model
from stablernn.training.batches.augmentation import Augmentation
from stablernn.training.batches.losses import ClassifyTask, ForecastTask, Task
from stablernn.training.batches.minibatches import Feed, StepFeed
from stablernn.training.calibration.temperature import fit_offsets, fit_temperature
from stablernn.training.evaluation.baselines import Baselines
from stablernn.training.evaluation.evaluate import Scorer, TorchPredictor, predict
from stablernn.training.evaluation.evaluate_predict_next import StepScorer
from stablernn.training.loop.certificate_log import check_certified, proved_in_short
from stablernn.training.loop.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from stablernn.training.loop.context_length import choose_context
from stablernn.training.loop.device import pick_device, torch_settings
from stablernn.training.loop.environment import environment
from stablernn.training.loop.ridge_skip import fit_forecaster, gate
from stablernn.training.loop.trainer import Progress, SampleFeed, Trainer
from stablernn.training.plots.figures import draw_curves, draw_predictions
from stablernn.training.settings.config import Config, laid_over, load_config
from stablernn.training.settings.predict_next_defaults import build_predictor, describe_steps
from stablernn.training.settings.resolve import described_cell, enough_memory, resolve
from stablernn.training.verdict import judge

_LOG = logging.getLogger("stablernn.training")
Data = ClassificationData | ForecastData | StepData
Summary = dict[str, Any]

_LENGTH = ("training.epochs", "training.max_steps", "training.patience")
"""What a resumed run may set anew where the learning rate does not depend on the length of the run."""
_NOT_SHARED = {
    *("cell", "hidden_size", "mask_channel", "time", "time_step", "embedding_size", "predict_change"),
    *("head", "skip", "skip_strength", "log"),
}
"""Settings of the model that a classifier and a forecaster do not take by the same name."""
_SAID_LATER = ("data.stamps",)
"""What a resumed run may set where nothing was set when it began."""
_MACHINE = ("training.device", "training.threads")
"""What a resumed run may always set anew."""


def train(
    config: Config | None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Train as the settings say, and leave a run directory.

    Args:
        config: The settings; None with ``resume``: those of the run, which also stand for all that it leaves out.
        run_dir: Where the run goes; None: ``runs/<dataset>-<cell>-<number>`` below the working directory.
        resume: Whether to go on with the run in ``run_dir``, from where it was stopped. The numbers are those of a run
            that was never stopped.
        progress: Called after each step and each validation, for a progress bar.

    Returns:
        What ``summary.json`` holds: ``run``, ``task``, ``cell``, ``parameters``, ``epochs``, ``steps``, ``seconds``,
        ``best_epoch``, ``metrics`` of the best weights on ``validation`` and, where there is one, ``test``,
        ``baselines``, how those beside a classification's scores were fitted, ``data_notes``, which files of the
        data were missing (``partial``) or had no published checksum (``unchecked``), ``diverged`` and ``warnings``,
        sentences; of a forecast with a linear skip also ``gate``, and ``context_length`` where it was chosen.

    Raises:
        ConfigError: If a setting is wrong, the model does not fit into memory, there is a run in ``run_dir`` already,
            or none to resume.
        UnknownNameError: If the dataset or the cell is not there.
        DataError: If the data cannot be used, or is not that with which the run began.
        DeviceError: If the device is not there.
        TrainingError: If the loss is not finite, no epoch left weights that give finite answers, the loss diverged and
            the best weights are of no use, or less is proved of them than ``training.certified`` asks for.
        InterruptedRun: If the user stopped it; it can be resumed.
    """
    place = _place_to_resume(run_dir) if resume else None
    stored = _stored_settings(place) if place is not None else None
    if stored is not None:
        config = stored if config is None else laid_over(stored, config)
    if config is None:
        raise ConfigError("train needs settings: give a config, or resume a run.")
    if not resume and run_dir is not None and RunDirectory(Path(run_dir)).has_run:
        raise ConfigError(f"There is a run in '{run_dir}' already. Resume it with --resume, or name another directory.")
    device = pick_device(config.training.device)
    data = load_run_data(config if place is None else _located(config, place.path, read_json(place.data)))
    settings = resolve(config, data)
    data = _timed(data, settings)
    if stored is not None:
        _check_resumable(stored, settings)
    with torch_settings(device, seed=settings.training.seed, threads=settings.training.threads):
        model = create_model(settings, data)
        opened = _open(run_dir, settings, data, model, device, resume=resume)
        return _fit(opened, settings, data, model.to(device), progress)


def load_run_data(
    config: Config,
    source: str | None = None,
    *,
    features: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
) -> Data:
    """The data that settings name, or another source read in the same way.

    Args:
        config: The settings.
        source: In place of theirs.
        features: What a trained model sees, in its order. Columns are found by these names, wherever they stand in the
            file; so are the features of sequences, where both have names.
        targets: What it forecasts, in its order.

    Raises:
        UnknownNameError: If the source is neither a dataset nor a file, or a column is not there.
        DataError: If the content cannot be used.
    """
    options = data_options(config)
    if source is not None and source != config.data.source:
        # What was asked of one dataset is nothing that another takes.
        options |= {"test": None, "variant": None, "partial": False, "permutation": None, "length": None}
        if not is_table(source):
            # Parts of a table's columns mean nothing to a file without columns.
            for key in ("id_column", "time_column", "label_column", "stamps"):
                options.pop(key)
    # Where columns were made into series, the model's one channel is none of the file's.
    melted = config.data.channels_as_series
    if features and not melted and (config.task.name != "classify" or has_feature_names(features)):
        options["channels"] = features
    if targets and not melted and config.task.name == "forecast":
        options["target"] = targets
    data = prepared(load_data(source or config.data.source, **options), config)
    model = config.model
    # Before a run has begun its settings do not say yet what becomes of the times.
    return _timed(data, config) if model.time == "ignore" or (model.time == "dt" and model.max_dt) else data


def prepared(data: Data, config: Config) -> Data:
    """Return loaded data as it is trained on: with a context length, and without validation where all is trained on."""
    if isinstance(data, ForecastData):
        data = choose_context(data, config.model.skip_strength)
    return without_validation(data) if config.training.refit else data


def data_options(config: Config) -> dict[str, Any]:
    """What settings ask of :func:`load_data`, but for the source."""
    task = config.task
    return {
        **config.data.model_dump(exclude={"source"}),
        "task": task.name,
        "horizon": task.horizon,
        "context_length": task.context_length,
        "season": task.season,
    }


def _timed(data: Data, config: Config) -> Data:
    """The data with times in the model's regular step, or without them where the model takes none."""
    if isinstance(data, StepData):
        return data
    if isinstance(data, ClassificationData) and data.time_step is None and config.model.time == "dt":
        raise DataError(
            f"'{data.name}' does not say when its steps were, and the model was trained with the time of each step. "
            "Add an array 't'."
        )
    return data.in_steps_of(config.model.time_step if config.model.time == "dt" else None)


def create_model(config: Config, data: Data) -> SequenceModel:
    """The model that resolved settings describe, its scaling fitted to the training split.

    Raises:
        ConfigError: If the cell or the model has no such option.
        UnknownNameError: If the cell is not in the catalog.
    """
    with enough_memory(config.model):
        if isinstance(data, StepData):
            return build_predictor(config, data)
        model = _build(config, data)
    model.fit_scaling(data.training_values())
    if isinstance(model, Forecaster):
        assert isinstance(data, ForecastData)
        fit_forecaster(model, data, config.model.skip_strength)
    return model


def _build(config: Config, data: ClassificationData | ForecastData) -> SequenceModel:
    settings = config.model
    shared: dict[str, Any] = {
        **settings.model_dump(exclude=_NOT_SHARED),
        "mask_channel": settings.mask_channel is True,
        "log": settings.log is True,
    }
    if isinstance(data, ForecastData):
        return Forecaster(
            settings.cell,
            len(data.channels),
            data.horizon,
            settings.hidden_size,
            target_indices=data.target_indices,
            quantiles=config.task.quantiles or (),
            head=settings.head,
            skip=settings.skip or "none",
            future_indices=[data.channels.index(name) for name in data.future],
            static_size=len(data.static),
            **shared,
        )
    return Classifier(settings.cell, len(data.features), len(data.labels), settings.hidden_size, **shared)


@dataclass(frozen=True)
class LoadedRun:
    """A run as read from its directory.

    Attributes:
        path: The directory.
        model: With the best weights, or those that were asked for, on the CPU, in evaluation mode.
        config: The resolved settings, as they are stored.
        data: What ``data.json`` holds: fingerprint, files, splits, features, labels or targets, scaling.
        summary: What ``summary.json`` holds; None while the run is not done.
    """

    path: Path
    model: SequenceModel
    config: Config
    data: dict[str, Any]
    summary: Summary | None

    def predictor(self) -> TorchPredictor:
        return TorchPredictor(self.model)

    @property
    def located(self) -> Config:
        """The settings with the data's files named by where they lie, whatever the working directory is."""
        return _located(self.config, self.path, self.data)

    def load_data(self, source: str | None = None) -> Data:
        """The run's data, or another source read so that it fits the model; see :func:`load_run_data`.

        Raises:
            UnknownNameError: If a file is not there.
            DataError: If its content cannot be used.
        """
        return load_run_data(self.located, source, features=self.data["features"], targets=self.data.get("targets"))


def load_run(run_dir: str | Path, epoch: int | None = None) -> LoadedRun:
    """Read a run with its best weights so far, or with those after one epoch.

    Args:
        run_dir: The directory.
        epoch: From 1; the run must have been trained with ``training.keep_epochs``. They are not calibrated.

    Raises:
        CheckpointError: If there is no run, no validated weights yet, none of that epoch, or a file is damaged.
    """
    place = RunDirectory(Path(run_dir))
    if not place.has_run:
        raise CheckpointError(f"There is no run in '{run_dir}': it has no config.yaml.")
    if not place.checkpoint("best").is_file():
        raise CheckpointError(
            f"The run in '{run_dir}' has no trained weights yet: no epoch was finished. Go on with it by --resume."
        )
    name = "best" if epoch is None else f"epoch-{epoch}"
    if not place.checkpoint(name).is_file():
        raise CheckpointError(
            f"The run in '{run_dir}' keeps no weights of epoch {epoch}. It has {len(place.records())} epochs; train "
            "with training.keep_epochs=true to keep those of each."
        )
    checkpoint = load_checkpoint(place.checkpoint(name))
    model = build_model(checkpoint.state["model"])
    model.load_state_dict(checkpoint.group("model"))
    model.mark_fitted()
    summary = {**read_json(place.summary), "run": str(run_dir)} if place.summary.is_file() else None
    return LoadedRun(place.path, model.eval(), _stored_settings(place), read_json(place.data), summary)


class RunDirectory:
    """Names and writing of the files of a run; the journal of its trainer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "env.json"
        self.data = path / "data.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.calibration = path / "calibration.json"
        self.plots = path / "plots"

    @property
    def has_run(self) -> bool:
        return self.config.exists()

    def checkpoint(self, name: str) -> Path:
        return self.path / "checkpoints" / f"{name}.safetensors"

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        self.checkpoint(name).parent.mkdir(exist_ok=True)
        save_checkpoint(self.checkpoint(name), checkpoint)

    def record(self, line: dict[str, Any]) -> None:
        self._write_records([*self.records(), to_json_types(line)])

    def records(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``."""
        if not self.metrics.exists():
            return []
        return [json.loads(line) for line in self.metrics.read_text(encoding="utf-8").splitlines()]

    def forget_after(self, epoch: int) -> None:
        """Drop the lines of epochs that are done again."""
        if self.metrics.exists():
            self._write_records([line for line in self.records() if line["epoch"] <= epoch])

    def _write_records(self, records: list[dict[str, Any]]) -> None:
        write_bytes(self.metrics, "".join(json.dumps(record) + "\n" for record in records).encode())


def _place_to_resume(run_dir: str | Path | None) -> RunDirectory:
    if run_dir is None:
        raise ConfigError("To resume a run, its directory must be named (--run-dir).")
    place = RunDirectory(Path(run_dir))
    if not place.has_run:
        raise ConfigError(f"There is no run to resume in '{run_dir}'. Start it without --resume.")
    return place


def _stored_settings(place: RunDirectory) -> Config:
    stored = load_config(place.config).as_stored()
    return with_stamps_of_training(stored, read_json(place.data).get("frequency"))


def with_stamps_of_training(stored: Config, frequency: str | None) -> Config:
    """Return stored settings that say how whole numbers were read as times where they are from before they said so.

    Days written as YYYYMMDD were taken for dates then; such numbers are refused now unless they are named.

    Args:
        stored: The settings of a run or of a registry version.
        frequency: Word of the time grid of its data; None where there is none.
    """
    is_calendar = frequency is not None and parse_frequency(frequency).kind != "index"
    if "stamps" in stored.data.model_fields_set or not is_calendar or not is_table(stored.data.source):
        return stored
    return stored.model_copy(update={"data": stored.data.model_copy(update={"stamps": "yyyymmdd"})})


def data_files(config: Config) -> dict[str, str]:
    """The settings of the data that name files, not a dataset."""
    named = {"source": config.data.source, "test": config.data.test}
    return {key: path for key, path in named.items() if path is not None and not (key == "source" and is_dataset(path))}


def _from_run(path: str, run_dir: Path) -> str:
    """The way to a file from a run directory: the same in every working directory, and when both are moved together."""
    file = Path(path)
    return os.path.relpath(file.parent.resolve() / file.name, run_dir.resolve())


def _located(config: Config, run_dir: Path, described: Mapping[str, Any]) -> Config:
    """The settings with the data's files named by where they lay at training, unless that is what they say already.

    Where nothing is there any more, what was typed at training is taken if it names a file here; else the place itself
    stays, so that the error for a missing file says where it was.
    """
    found = {}
    for key, path in data_files(config).items():
        way = described.get("files", {}).get(key)
        if way is None or way == _from_run(path, run_dir):
            continue
        place = Path(os.path.normpath(run_dir.resolve() / way))
        if place.is_file() or not Path(path).is_file():
            found[key] = str(place)
    return config.model_copy(update={"data": config.data.model_copy(update=found)})


def _check_resumable(stored: Config, given: Config) -> None:
    """Refuse settings with which the run could not go on as it began."""
    before, now = _flat(stored.tree()), _flat(given.tree())
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key) and key not in _MACHINE]
    # What was not said may be said now: the fingerprint tells whether the data are still the same.
    changed = [key for key in changed if key not in _SAID_LATER or before.get(key) is not None]
    if not changed:
        return
    fixed = [key for key in changed if key not in _LENGTH]
    key = (fixed or changed)[0]
    told = f"'{key}' was {before.get(key)!r} when the run began, got {now.get(key)!r}"
    if fixed:
        raise ConfigError(f"A resumed run keeps its settings: {told}. Start a new run to change it.")
    planned = (
        []
        if stored.training.schedule in ("constant", "step", "plateau")
        else [f"schedule '{stored.training.schedule}'"]
    )
    planned += [f"cell '{stored.model.cell}'"] if described_cell(stored.model).plans_ahead else []
    if planned:
        raise ConfigError(
            f"The {planned[0]} is laid out over the whole run, so its length cannot change on resume: {told}. "
            "Start a new run to change it."
        )


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree}
    return {
        name: value for key, entry in tree.items() for name, value in _flat(entry, f"{prefix}.{key}".strip(".")).items()
    }


def _open(
    run_dir: str | Path | None, config: Config, data: Data, model: SequenceModel, device: torch.device, *, resume: bool
) -> RunDirectory:
    """The directory with settings, environment and data written, or checked where a run is resumed."""
    try:
        path = Path(run_dir) if run_dir is not None else _new_directory(data.name, config.model.cell)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"Cannot make the run directory '{error.filename}': {error.strerror}.") from error
    place = RunDirectory(path)
    here = environment(device)
    if resume:
        began_with = read_json(place.data)["fingerprint"]
        if began_with != data.fingerprint:
            raise DataError(
                f"'{data.name}' has changed since the run in '{run_dir}' began: its fingerprint was {began_with}, "
                f"now it is {data.fingerprint}. Give the old data, or start a new run."
            )
        first = read_json(place.environment)
        here = {**first, "resumed": [*first.get("resumed", []), here]}
    write_json(place.environment, here)
    described = describe_data(data, model)
    if resume:
        before = read_json(place.data)
        described["files"] = before.get("files", {})
        # The length itself is among the settings of the run, so that it was not chosen again.
        tried = before.get("notes", {}).get("context_length")
        if tried is not None:
            data.notes["context_length"] = tried
    else:
        described["files"] = {key: _from_run(file, path) for key, file in data_files(config).items()}
    write_json(place.data, described)
    # The settings make the directory a run, so they come last: what has a config.yaml has the rest.
    write_bytes(place.config, yaml.safe_dump(config.tree(), sort_keys=False, allow_unicode=True).encode())
    return place


def _new_directory(dataset: str, cell: str) -> Path:
    word = re.sub(r"[^a-z0-9_-]+", "-", dataset.lower().removesuffix(".gz").rsplit(".", 1)[0]).strip("-") or "data"
    root = Path("runs")
    root.mkdir(exist_ok=True)
    number = 1
    while True:
        path = root / f"{word}-{cell}-{number}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def describe_data(data: Data, model: SequenceModel) -> dict[str, Any]:
    """What ``data.json`` holds: all that is needed to read more data of the same kind, and what was counted."""
    scaling = model.scaling
    described: dict[str, Any] = {"name": data.name, "task": data.task, "fingerprint": data.fingerprint}
    if isinstance(data, ForecastData):
        described |= {
            "features": list(data.channels),
            "targets": list(data.targets),
            "series": len(data.series),
            "frequency": data.frequency,
            "stamps": data.notes.get("stamps") or (None if data.series[0].ds.dtype.kind == "M" else "step"),
            "season": data.season,
            "horizon": data.horizon,
            "context_length": data.context_length,
            "validation_steps": data.validation_steps,
            "test_steps": data.test_steps,
            "future": list(data.future),
            "static": list(data.static),
            "calendar": calendar_periods(data.calendar),
            "splits": {split: len(data.windows(split)) for split in ("train", "validation", "test")},
        }
    elif isinstance(data, StepData):
        described |= describe_steps(data)
    else:
        sizes = {"train": data.train, "validation": data.validation, "test": data.test}
        described |= {
            "features": list(data.features),
            "labels": list(data.labels),
            "stamps": data.notes.get("stamps"),
            "longest": int(data.train.lengths.max()),
            "splits": {name: len(split) for name, split in sizes.items() if split is not None},
        }
    return described | {
        "scaling": {
            "kind": scaling.kind,
            "mean": scaling.mean.tolist(),
            "scale": scaling.scale.tolist(),
            "window": model.window,
            "mask_channel": scaling.mask_channel,
        },
        "notes": data.notes,
    }


def _fit(
    place: RunDirectory, config: Config, data: Data, model: SequenceModel, progress: Callable[[Progress], None] | None
) -> Summary:
    skip = model.skip if isinstance(model, Forecaster) else None
    start = None if skip is None else skip.weight.detach().clone()
    trainer = _trainer(place, config, data, model)
    if place.checkpoint("last").is_file():
        trainer.restore(load_checkpoint(place.checkpoint("last")))
    place.forget_after(trainer.position.epoch)
    try:
        if not trainer.fit(progress):
            raise _interrupted(place, trainer)
        return _finish(place, config, data, trainer, start)
    except KeyboardInterrupt:
        raise _interrupted(place, trainer) from None


def _trainer(place: RunDirectory, config: Config, data: Data, model: SequenceModel) -> Trainer:
    settings = config.training
    if isinstance(data, StepData):
        assert settings.batch_size is not None
        assert settings.bptt_steps is not None
        device = next(model.parameters()).device
        feed: Feed = StepFeed(
            data.train, settings.batch_size, settings.bptt_steps, continuous=data.continuous, device=device
        )
        return Trainer(model, feed, StepScorer(data, "validation"), settings, place)
    validation = Scorer(data, "validation", quantiles=config.task.quantiles)
    if isinstance(data, ForecastData):
        # Errors of series that differ in size are only comparable in units of each series.
        task: Task = ForecastTask("mase" if len(data.series) > 1 else "mae")
        assert settings.batch_size is not None
        feed = SampleFeed(
            data.windows("train"),
            settings.batch_size,
            next(model.parameters()).device,
            warm_up=settings.warm_up or 0,
            multiple=model.patches.stride,
        )
        return Trainer(model, feed, validation, settings, place, task)
    weights = class_weights(data) if settings.class_weights == "balanced" else None
    changed = Augmentation(settings.time_warp or 0.0, settings.jitter or 0.0, settings.rescale or 0.0)
    task = ClassifyTask(weights, settings.label_smoothing or 0.0, changed)
    return Trainer(model, data.train, validation, settings, place, task)


def _interrupted(place: RunDirectory, trainer: Trainer) -> InterruptedRun:
    return InterruptedRun(
        f"Stopped at step {trainer.position.step} of {trainer.total_steps}. "
        f"Go on with it by --resume --run-dir {place.path}."
    )


def calibrate(model: SequenceModel, config: Config, data: Data, skip: Tensor | None) -> dict[str, Any]:
    """Fit to the validation split what is fitted after training, in place.

    Args:
        model: With its best weights; it is left in evaluation mode.
        config: The resolved settings.
        data: What it was trained on.
        skip: The weights of a forecast's linear skip before training.

    Returns:
        What was found: the ``gate`` of a skip, the ``temperature`` of a classifier, the ``intervals`` of a forecast.
    """
    model.eval()
    found: dict[str, Any] = {}
    if isinstance(model, Forecaster) and isinstance(data, ForecastData):
        windows = data.windows("validation")
        if not len(windows):
            return found
        if skip is not None:
            found["gate"] = asdict(gate(model, skip, windows))
        if config.training.calibrate:
            found["intervals"] = fit_offsets(model, windows)
    elif isinstance(model, Classifier) and isinstance(data, ClassificationData) and config.training.calibrate:
        found["temperature"] = fit_temperature(model, data.validation)
    return found


def _finish(place: RunDirectory, config: Config, data: Data, trainer: Trainer, start: Tensor | None) -> Summary:
    """Score the best weights, draw, and write the summary, whose being there says that the run is done."""
    trainer.load_best()
    calibration = calibrate(trainer.model, config, data, start)
    if calibration:
        write_json(place.calibration, calibration)
    place.save("best", trainer.best(trainer.model.state_dict()))
    if config.training.certified:
        check_certified(trainer.model, prove(trainer.model, stored=False))
    predictor = TorchPredictor(trainer.model)
    position = trainer.position
    if config.training.plots:
        draw_curves(place.plots, place.records(), trainer.task.headline, position.best_epoch, place.path.name)
    if isinstance(data, StepData):
        scorers = {split: StepScorer(data, split) for split in ("validation", "test")}
        found = {split: scorer.score_of(predictor) for split, scorer in scorers.items() if scorer.samples}
        return _summarize(place, config, data, trainer, found, {}, calibration)
    metrics: dict[str, Any] = {}
    drawn = "validation"
    validation = scorer = Scorer(data, "validation", quantiles=config.task.quantiles)
    outputs = predict(predictor, validation.source)
    if validation.samples:
        metrics["validation"] = validation.score(outputs)
    if isinstance(data, ForecastData) or data.test is not None:
        drawn, scorer = "test", Scorer(data, "test", quantiles=config.task.quantiles)
        outputs = predict(predictor, scorer.source)
        metrics["test"] = scorer.score(outputs)
    baselines: dict[str, Any] = {}
    if isinstance(data, ClassificationData):
        fitted = Baselines(data)
        metrics = {split: scores | fitted.scores(split) for split, scores in metrics.items()}
        baselines = {"ridge": fitted.notes}
    if scorer.samples and config.training.plots:
        draw_predictions(place.plots, data, scorer, outputs, config.task.quantiles or (), drawn)
    return _summarize(place, config, data, trainer, metrics, baselines, calibration)


def _summarize(
    place: RunDirectory,
    config: Config,
    data: Data,
    trainer: Trainer,
    metrics: Mapping[str, Any],
    baselines: Mapping[str, Any],
    calibration: Mapping[str, Any],
) -> Summary:
    position = trainer.position
    verdict = judge(trainer, data, metrics.get("validation"), calibration.get("gate"))
    summary: Summary = {
        "run": str(place.path),
        "task": data.task,
        "cell": config.model.cell,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad),
        "epochs": trainer.epochs_begun,
        "steps": position.step,
        "seconds": round(position.seconds, 3),
        "best_epoch": position.best_epoch,
        "metrics": metrics,
        "baselines": baselines,
        "certificate": proved_in_short(trainer.model),
        "data_notes": score_notes(data.notes),
        "diverged": verdict.diverged,
        "warnings": [*verdict.warnings, *([verdict.failure] if verdict.failure is not None else [])],
    }
    if "gate" in calibration:
        summary["gate"] = calibration["gate"]
    if "context_length" in data.notes:
        summary["context_length"] = data.notes["context_length"]
    write_json(place.summary, summary)
    for sentence in verdict.warnings:
        _LOG.warning(sentence)
    if verdict.failure is not None:
        raise TrainingError(verdict.failure)
    return dict(to_json_types(summary))
