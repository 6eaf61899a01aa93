"""The TARGET of a command: a run, computed by torch, or a registry version, computed by an engine of the runtime."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.options import Device, Stamps
from stablernn_cli.output import format_names

if TYPE_CHECKING:
    from stablernn.certificates.certificate import Certificate
    from stablernn.certificates.input_range import InputRange
    from stablernn.data.step_data import Data, Output
    from stablernn.nn.models import SequenceModel
    from stablernn.training import Config, TorchPredictor
    from stablernn.training.evaluation.scorers import PredictorNames
    from stablernn_registry import Version
    from stablernn_runtime import ServedModel


@dataclass(frozen=True)
class Target:
    """A trained model with the facts that are needed to run it on files.

    Attributes:
        name: The run directory, or NAME:VERSION.
        predictor: Computes answers for batches of sequences in raw units.
        task: ``classify``, ``forecast``, ``predict-next`` or ``simulate``.
        features: Names of the inputs, in the model's order; for tokens the vocabulary.
        labels: Names of classes or of binary outputs, in the model's order; empty for a regression.
        targets: Names of the predicted numbers; empty for a classification.
        horizon: Steps that the model forecasts; None for a classification.
        context_length: Steps before a forecast that the model sees; None for a classification.
        season: Steps of a season; None for a classification.
        frequency: Frequency alias of the time grid; None if there is none.
        quantiles: Levels of the forecast quantiles.
        config: Resolved settings of the training run.
        fingerprint: Fingerprint of the training data.
        output: Type of the output at each step; None for other tasks than ``predict-next``.
        engine: Name of the engine that was asked for a run, or of the one that runs a version.
        sample_rate: Samples in a second of the recordings of training; None where it is not known.
        sample_time: Sampling time of the experiments of training in seconds; likewise.
        input_range: Least and largest value of each input in those experiments, by its name.
        digest: ``sha256:`` and the hash of the version's manifest, or of the weights of a run.
        device: The device that a version runs on; None where each kind of work has its own.
        metrics: Scores at the end of training, by split.
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
    engine: str = "auto"
    sample_rate: float | None = None
    sample_time: float | None = None
    input_range: Mapping[str, Sequence[float]] = field(default_factory=dict)
    digest: str = ""
    device: Device | None = None
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def takes_tokens(self) -> bool:
        """True if the inputs are tokens: indices into a vocabulary."""
        return self.predictor.input_name == "tokens"

    @property
    def names(self) -> PredictorNames:
        """The names by which the model was trained, for scores; None for those that it has none of."""
        from stablernn.training.evaluation.scorers import PredictorNames

        return PredictorNames(
            features=self.features, outputs=self.labels or self.targets or None, quantiles=self.quantiles or None
        )

    def load_data(self, source: str | None, stamps: Stamps | None = None) -> Data:
        """Load the training data, or another source in the form that the model expects.

        Columns are matched by name, in any order.

        Args:
            source: Dataset name or file. Default: the training data.
            stamps: Meaning of whole numbers as timestamps. Default: as in training.

        Raises:
            UsageError: If a file of the training data is missing, or ``stamps`` is set for a source that is not a
                table.
            stablernn.errors.DataError: If the data does not fit the model.
        """
        from stablernn.data.files import is_table
        from stablernn.data.prediction_inputs import step_mismatch_error
        from stablernn.data.table.frequency import parse_frequency
        from stablernn.training import load_run_data

        if source is None:
            self._check_training_files()
        config = self.config
        if stamps is not None:
            if not is_table(source or config.data.source):
                raise UsageError(f"--stamps is for tables of series, got '{stamps}'. Leave it out.")
            config = config.model_copy(update={"data": config.data.model_copy(update={"stamps": stamps})})
        data = load_run_data(config, source, features=self.features, targets=self.targets)
        self.check_sample_rate(source or config.data.source, data.notes)
        frequency = data.frequency
        # Steps of another length would be forecast without an error, and be wrong.
        if (
            frequency
            and self.frequency
            and not parse_frequency(frequency).has_steps_of(parse_frequency(self.frequency))
        ):
            raise step_mismatch_error(f"'{data.name}'", frequency, self.frequency)
        return data

    def with_repairs(self, source: str, overrides: Sequence[str] | None) -> Target:
        """Return the target with other repairs of the table that is read than those of training.

        Args:
            source: The file.
            overrides: ``data.sort=true`` and the like; None or empty for those of training.

        Raises:
            UsageError: If the source is no table, or one is no repair that another file may need.
            stablernn.errors.ConfigError: If a value is not allowed.
        """
        if not overrides:
            return self
        from stablernn.data.files import is_table
        from stablernn.data.options import FILE_REPAIRS
        from stablernn.training import load_config

        if not is_table(source):
            raise UsageError(f"--set is for tables of series, got '{overrides[0]}'. Leave it out.")
        allowed = [f"data.{name}" for name in FILE_REPAIRS]
        for override in overrides:
            key = override.partition("=")[0].strip()
            if key not in allowed:
                raise UsageError(f"--set takes repairs of the file here ({', '.join(allowed)}), got '{override}'.")
        return replace(self, config=load_config(None, overrides, self.config.tree()))

    def check_sample_rate(self, source: str, notes: Mapping[str, Any]) -> None:
        """Refuse recordings or experiments of another sampling rate than those of training.

        Args:
            source: The file or folder.
            notes: Notes of reading it.

        Raises:
            stablernn.errors.DataError: If the rates differ.
        """
        from stablernn.data.experiments import RATE_TOLERANCE
        from stablernn.errors import DataError

        rate = notes.get("sample_rate")
        if rate is not None and self.sample_rate is not None and rate != self.sample_rate:
            raise DataError(
                f"'{source}' has recordings of {rate:g} Hz, and {self.name} was trained on {self.sample_rate:g} Hz. "
                "Resample them to that rate."
            )
        time = notes.get("sample_time")
        if time and self.sample_time and abs(time / self.sample_time - 1) > RATE_TOLERANCE:
            raise DataError(
                f"'{source}' is sampled every {time:.6g} s, and {self.name} was trained on every "
                f"{self.sample_time:.6g} s. Resample it to that."
            )

    def _check_training_files(self) -> None:
        """Raise UsageError if a file of the training data is missing."""
        from stablernn.training.run_data import data_files

        for file in map(Path, data_files(self.config).values()):
            if file.exists():
                continue
            # A version has the path as it was typed for training; a run has the resolved one.
            problem = "does not exist any more" if file.is_absolute() else f"is not in the working folder {Path.cwd()}"
            raise UsageError(
                f"'{self.name}' was trained on the file '{file}', which {problem}. Name the data with --data, or run "
                "the command in the folder of the file."
            )


def open_target(text: str, device: Device, engine: str | None = None) -> Target:
    """Load the model that a TARGET names: a directory with a run is that run, anything else a reference.

    Args:
        text: The words of the command line.
        device: Device to compute on.
        engine: Name of an engine: one that runs cells for a run, and one that runs graphs for a version. Default: the
            fastest for the cell, and ONNX Runtime.

    Raises:
        UsageError: If it is neither.
        stablernn.errors.UnknownNameError: If no engine of that name runs cells.
        stablernn_runtime.errors.SettingsError: If no engine of that name runs versions.
        stablernn_runtime.errors.ModelLoadError: If the engine does not run the version.
        stablernn_registry.RegistryError: If the registry has no such version, or it is damaged.
        stablernn.errors.CheckpointError: If the run cannot be read.
    """
    if is_run(text):
        return _open_run(Path(text), device, engine)
    return _open_version(find_version(text), device, engine or "onnx")


def find_version(text: str) -> Version:
    """Return the registry version that a TARGET names; runs are not considered.

    Raises:
        UsageError: If it is not a reference.
        stablernn_registry.RegistryError: If the registry has no such version, or it is damaged.
    """
    from stablernn_registry import RefError, Registry, UnknownRefError

    registry = Registry()
    try:
        return registry.get(text)
    except RefError as error:
        # A text with a slash was meant as a path: the rules for references would not help.
        if _is_path(text):
            advice = "Give one that 'stablernn train' wrote, or a version of the registry such as NAME@ALIAS."
            raise UsageError(missing_run_message(text, advice)) from error
        raise UsageError(f"'{text}' is neither a run directory nor a reference. {error}") from error
    except UnknownRefError as error:
        if "@" in text or ":" in text:
            raise UsageError(f"'{text}' is not in the registry {registry.root}. {error}") from error
        raise UsageError(f"There is no run directory '{text}', and in the registry: {error}") from error


def _is_path(text: str) -> bool:
    """True if a text cannot be a reference but a path."""
    return text.startswith((".", "~")) or "/" in text or "\\" in text


def missing_run_message(text: str, advice: str) -> str:
    """Return the message about a path that is not a run directory.

    Args:
        text: The path.
        advice: Sentence that says what to do if there are no runs in its folder.
    """
    path = Path(text)
    if path.is_dir():
        problem = f"'{text}' is not a run directory: it has no config.yaml."
    elif path.exists():
        problem = f"'{text}' is a file, not a run directory."
    else:
        problem = f"There is no run directory '{text}'."
    folder = path.parent
    # The parent may be missing or unreadable too; then there is nothing to suggest.
    try:
        runs = sorted(entry.name for entry in folder.iterdir() if is_run(entry))
    except OSError:
        runs = []
    if runs:
        return f"{problem} The runs in '{folder}' are: {format_names(runs)}."
    return f"{problem} {advice}"


def is_run(text: str | Path) -> bool:
    """True if a path is a run directory."""
    return (Path(text) / "config.yaml").is_file()


def _open_run(path: Path, device: Device, engine: str | None) -> Target:
    """Load the best checkpoint of a run on a device."""
    from stablernn.training import load_run
    from stablernn.training.loop.device import pick_device

    run = load_run(path)
    run.model.to(pick_device(device)).rnn.use_engine(engine or "auto")
    with (path / "checkpoints" / "best.safetensors").open("rb") as file:
        digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    target = _target(str(path), run.predictor(), run.data, run.located)
    metrics = run.summary["metrics"] if run.summary else {}
    return replace(target, engine=engine or "auto", digest=digest, metrics=metrics)


def _open_version(version: Version, device: Device, engine: str) -> Target:
    """Open a version with an engine of the runtime, with the settings in its lineage."""
    from stablernn.errors import ConfigError
    from stablernn.training.settings.load import validate, with_stamps_of_training
    from stablernn_runtime import ServedModel

    manifest = version.manifest
    lineage = manifest.lineage
    if not lineage.get("config"):
        # Another program published it, as a network that was trained elsewhere.
        raise CommandError(
            f"'{version.ref}' was published without the settings of a run, so no file can be read for it. For answers, "
            "serve it, or load it by stablernn_runtime.ServedModel; publish it with the metrics that you measured."
        )
    try:
        stored = validate(lineage["config"]).as_stored()
        config = with_stamps_of_training(stored, manifest.frequency)
    except ConfigError as error:
        raise CommandError(
            f"'{version.ref}' does not state how its data was read, so it cannot be run on files: {error}"
        ) from error
    facts = {**manifest.model_dump(mode="json"), "fingerprint": (lineage.get("data") or {}).get("fingerprint", "")}
    model = ServedModel.load(version, device, engine=engine, keeps_memory=True)
    # Where both devices are used, 'by_work' says for what.
    single_device = None if model.placement.by_work else model.placement.device
    target = _target(version.ref, model, facts, config)
    return replace(target, engine=model.engine, digest=version.digest, device=single_device, metrics=manifest.metrics)


def _target(name: str, predictor: TorchPredictor | ServedModel, facts: Mapping[str, Any], config: Config) -> Target:
    def names(key: str) -> tuple[str, ...]:
        return tuple(facts.get(key) or ())

    # The data.json of a run and the manifest of a version have the same keys, but for the notes.
    notes = facts.get("notes") or ((facts.get("lineage") or {}).get("data") or {}).get("notes") or {}
    return Target(
        name=name,
        predictor=predictor,
        # A version answers at every step; that it simulates is among its settings.
        task="simulate" if config.task.name == "simulate" else facts["task"],
        features=names("features"),
        labels=names("labels"),
        targets=names("targets"),
        horizon=facts.get("horizon"),
        context_length=facts.get("context_length"),
        season=facts.get("season"),
        frequency=facts.get("frequency"),
        quantiles=tuple(config.task.quantiles or ()),
        config=config,
        fingerprint=facts["fingerprint"],
        output=facts.get("output"),
        sample_rate=notes.get("sample_rate"),
        sample_time=notes.get("sample_time"),
        input_range=notes.get("input_range") or {},
    )


@dataclass(frozen=True)
class CertifiedTarget:
    """A trained model with its certificates.

    Attributes:
        name: The run directory, or NAME:VERSION.
        version: The registry version; None for a run.
        model: The torch model.
        document: The certificate as ``certify --json`` prints it.
        certificates: The certificate for all inputs, unless a range was named, and that for inputs within a range, if
            there is one.
    """

    name: str
    version: Version | None
    model: SequenceModel
    document: dict[str, Any]
    certificates: tuple[Certificate, ...]


def certify_target(text: str, inputs_within: str | None = None) -> CertifiedTarget:
    """Return a TARGET with its certificates, computed from its weights.

    Args:
        text: The words of the command line.
        inputs_within: Range of the raw inputs, as ``--inputs-within`` takes it, of which alone ``document`` is; None
            for inputs of any size, with a second certificate for the range seen in training, if it is known.

    Raises:
        As :func:`open_target`.
        stablernn.errors.ConfigError: If the range is none, or does not fit the model.
    """
    from stablernn.certificates.certificate import prove
    from stablernn.certificates.input_range import InputRange
    from stablernn.certificates.stored_certificate import WITHIN_STAGE, prove_both, stored_document
    from stablernn.errors import UntrainedWarning
    from stablernn.nn.models import warn_of_missing_calls

    # Before the model is loaded, which takes longer.
    inputs = None if inputs_within is None else InputRange.parse(inputs_within)
    name, model, default_range, version, series = _open_with_range(text)
    certificates: tuple[Certificate, ...]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UntrainedWarning)
        warn_of_missing_calls(model, stacklevel=1)
        if inputs is None:
            certificate, bounded = prove_both(model, inputs=default_range)
            document = stored_document(model, certificate, bounded, **series)
            certificates = (certificate,) if bounded is None else (certificate, bounded)
        else:
            certificates = (prove(model, inputs=inputs, stage=WITHIN_STAGE),)
            document = stored_document(model, certificates[0], None, **series)
    # No note, which --quiet would hide: a call was left out in training that the guarantee depends on.
    for entry in caught:
        print(f"Warning: {entry.message}", file=sys.stderr, flush=True)
    return CertifiedTarget(name, version, model, document, certificates)


def open_weights(text: str) -> SequenceModel:
    """Return the torch model of a TARGET, also of a registry version.

    Raises:
        As :func:`open_target`.
    """
    return _open_with_range(text)[1]


def _open_with_range(text: str) -> tuple[str, SequenceModel, InputRange | None, Version | None, dict[str, Any]]:
    """Return a TARGET's name, its torch model, the range of its second certificate, the version, and its series' facts.

    The version is None for a run; the facts are what ``series_facts`` returns.
    """
    from stablernn.certificates.input_range import InputRange, training_range
    from stablernn.certificates.stored_certificate import series_facts

    if is_run(text):
        from stablernn.training import load_run

        run = load_run(Path(text))
        return text, run.model, training_range(run.data), None, series_facts(run.data)
    from stablernn.export.load_exported import reload

    version = find_version(text)
    stored = version.manifest.certificate or {}
    bounded = stored.get("bounded_inputs")
    inputs = InputRange.from_document(bounded.get("inputs")) if isinstance(bounded, Mapping) else None
    model = reload(version.read("config.json"), version.read("weights.safetensors"))
    return version.ref, model, inputs, version, series_facts(stored.get("wrong_sample"))
