"""What `eval` and `predict` work on: a run by torch, or a registry version by ONNX Runtime, behind one face."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.options import Device, Stamps

if TYPE_CHECKING:
    from stablernn.data import ClassificationData, ForecastData
    from stablernn.data.step_data import Output, StepData
    from stablernn.nn.models import SequenceModel
    from stablernn.training import Config, TorchPredictor
    from stablernn_registry import Version
    from stablernn_runtime import ServedModel


@dataclass(frozen=True)
class Target:
    """A trained model with what it has to be told.

    Attributes:
        name: The run directory, or NAME:VERSION.
        predictor: Answers batches of sequences in raw units.
        task: ``classify``, ``forecast`` or ``predict-next``.
        features: Names of the inputs, in the model's order; of tokens the vocabulary.
        labels: Names of classes or switches, in the model's order; empty where numbers are answered.
        targets: Names of the numbers that are answered; empty for a classification.
        horizon: Steps that the model forecasts; None for a classification.
        context_length: Steps that it looks back on; None for a classification.
        season: Steps of a season; None for a classification.
        frequency: Word of the time grid; None where there is none.
        quantiles: Levels that a forecast brings.
        config: Resolved settings of the training run.
        fingerprint: Of the data that it was trained on.
        output: What is said at each step; None for other tasks than ``predict-next``.
    """

    name: str
    predictor: TorchPredictor | ServedModel
    task: str
    features: tuple[str, ...]
    labels: tuple[str, ...]
    targets: tuple[str, ...]
    horizon: int | None
    context_length: int | None
    season: int | None
    frequency: str | None
    quantiles: tuple[float, ...]
    config: Config
    fingerprint: str
    output: Output | None = None

    @property
    def tokens(self) -> bool:
        """Whether inputs are whole numbers that stand for words of a vocabulary."""
        return self.predictor.input_name == "tokens"

    def load_data(
        self, source: str | None, stamps: Stamps | None = None
    ) -> ClassificationData | ForecastData | StepData:
        """The data of the training run, or another source read so that it fits the model.

        Columns are found by name: their order in another file says nothing.

        Args:
            source: A dataset's name or a file; the data of the training run when omitted.
            stamps: What whole numbers are as timestamps; as in training when omitted.

        Raises:
            UsageError: If the data of the training run is asked for and a file of it is not there, or ``stamps`` is
                given for a source that is no table.
            stablernn.errors.DataError: If it does not fit.
        """
        from stablernn.data import ForecastData
        from stablernn.data.prediction_inputs import step_mismatch_error
        from stablernn.data.readers.paths import is_table
        from stablernn.data.time.frequency import parse_frequency
        from stablernn.training import load_run_data

        if source is None:
            self._check_files()
        config = self.config
        if stamps is not None:
            if not is_table(source or config.data.source):
                raise UsageError(f"--stamps is for tables of series, got '{stamps}'. Leave it out.")
            config = config.model_copy(update={"data": config.data.model_copy(update={"stamps": stamps})})
        data = load_run_data(config, source, features=self.features, targets=self.targets)
        own = data.frequency if isinstance(data, ForecastData) else None
        if own and self.frequency and not parse_frequency(own).has_steps_of(parse_frequency(self.frequency)):
            raise step_mismatch_error(f"'{data.name}'", own, self.frequency)
        return data

    def _check_files(self) -> None:
        """Raises if a file that the model was trained on is not where the settings name it."""
        from stablernn.training.run import data_files

        for file in map(Path, data_files(self.config).values()):
            if file.exists():
                continue
            # A version names files as they were typed at training; a run knows where they lie.
            where = "is not there any more" if file.is_absolute() else f"is not in the working folder {Path.cwd()}"
            raise UsageError(
                f"'{self.name}' was trained on the file '{file}', which {where}. Name the data with --data, or "
                "give the command where the file is."
            )


def open_target(text: str, device: Device) -> Target:
    """The model that a TARGET names.

    A directory with a run in it is that run, anything else a reference.

    Raises:
        UsageError: If it can be neither.
        stablernn_registry.RegistryError: If the registry has no such version, or it is damaged.
        stablernn.errors.CheckpointError: If the run cannot be read.
    """
    return _open_run(Path(text), device) if is_run(text) else _open_version(find_version(text), device)


def find_version(text: str) -> Version:
    """The registry version that a TARGET names, which is no run.

    Raises:
        UsageError: If it is no reference.
        stablernn_registry.RegistryError: If the registry has no such version, or it is damaged.
    """
    from stablernn_registry import RefError, Registry, UnknownRefError

    registry = Registry()
    try:
        return registry.get(text)
    except RefError as error:
        if _is_path(text):
            raise UsageError(_no_run(text)) from error
        raise UsageError(f"'{text}' is neither a run directory nor a reference. {error}") from error
    except UnknownRefError as error:
        if "@" in text or ":" in text:
            raise UsageError(f"'{text}' is not in the registry {registry.root}. {error}") from error
        raise UsageError(f"There is no run directory '{text}', and in the registry: {error}") from error


def _is_path(text: str) -> bool:
    return text.startswith((".", "~")) or "/" in text or "\\" in text


def _no_run(text: str) -> str:
    """Returns the sentence for a path that is not that of a run directory."""
    path = Path(text)
    if path.is_dir():
        problem = f"'{text}' is not a run directory: it has no config.yaml."
    elif path.exists():
        problem = f"'{text}' is a file, not a run directory."
    else:
        problem = f"There is no run directory '{text}'."
    folder = path.parent
    try:
        runs = sorted(entry.name for entry in folder.iterdir() if is_run(entry))
    except OSError:
        runs = []
    if runs:
        return f"{problem} The runs in '{folder}' are: {listed(runs)}."
    return f"{problem} Give one that 'stablernn train' wrote, or a version of the registry such as NAME@ALIAS."


def is_run(text: str | Path) -> bool:
    """Whether a path is that of a run directory."""
    return (Path(text) / "config.yaml").is_file()


def _open_run(path: Path, device: Device) -> Target:
    from stablernn.training import load_run
    from stablernn.training.loop.device import pick_device

    run = load_run(path)
    run.model.to(pick_device(device))
    return _target(str(path), run.predictor(), run.data, run.located)


def _open_version(version: Version, device: Device) -> Target:
    from stablernn.errors import ConfigError
    from stablernn.training.run import with_stamps_of_training
    from stablernn.training.settings.config import validate
    from stablernn_runtime import ServedModel

    manifest = version.manifest
    lineage = manifest.lineage
    try:
        stored = validate(lineage.get("config") or {}).as_stored()
        config = with_stamps_of_training(stored, manifest.frequency)
    except ConfigError as error:
        raise CommandError(
            f"'{version.ref}' does not say how its data was read, so it cannot be run on files: {error}"
        ) from error
    facts = {**manifest.model_dump(mode="json"), "fingerprint": (lineage.get("data") or {}).get("fingerprint", "")}
    return _target(version.ref, ServedModel.load(version, device), facts, config)


def _target(name: str, predictor: TorchPredictor | ServedModel, facts: Mapping[str, Any], config: Config) -> Target:
    def words(key: str) -> tuple[str, ...]:
        return tuple(facts.get(key) or ())

    return Target(
        name=name,
        predictor=predictor,
        task=facts["task"],
        features=words("features"),
        labels=words("labels"),
        targets=words("targets"),
        horizon=facts.get("horizon"),
        context_length=facts.get("context_length"),
        season=facts.get("season"),
        frequency=facts.get("frequency"),
        quantiles=tuple(config.task.quantiles or ()),
        config=config,
        fingerprint=facts["fingerprint"],
        output=facts.get("output"),
    )


def listed(names: Sequence[str], at_most: int = 12) -> str:
    """Names for people, cut where there are many."""
    shown = ", ".join(names[:at_most])
    return f"{shown}, ... ({len(names)})" if len(names) > at_most else shown


def certified(text: str) -> tuple[str, dict[str, Any]]:
    """The name of a TARGET and its certificate, computed now from its weights.

    Raises:
        As :func:`open_target`.
    """
    from stablernn.certificates.certificate import certify
    from stablernn.errors import UntrainedWarning

    name, model = open_weights(text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UntrainedWarning)
        document = certify(model).document()
    for entry in caught:
        print(f"Warning: {entry.message}", file=sys.stderr, flush=True)
    return name, document


def open_weights(text: str) -> tuple[str, SequenceModel]:
    """The name of a TARGET and its torch model, of a registry version too.

    Raises:
        As :func:`open_target`.
    """
    if is_run(text):
        from stablernn.training import load_run

        return text, load_run(Path(text)).model
    from stablernn.export.load_exported import reload

    version = find_version(text)
    return version.ref, reload(version.read("config.json"), version.read("weights.safetensors"))
