"""The result of a training run in memory: model, settings, description of the data, scores, and its small files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stablernn.atomic_files import write_bytes
from stablernn.errors import ConfigError
from stablernn.export.load_exported import reload
from stablernn.nn.models import SequenceModel
from stablernn.training.loaded_run import load_run
from stablernn.training.run_directory import RunDirectory
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import validate
from stablernn_registry import Version

ESTIMATOR_FILE = "estimator.json"
"""File of a run directory with what an estimator knows of its training data beyond the run."""


@dataclass(frozen=True)
class FittedRun:
    """A finished run.

    Attributes:
        model: With the best weights, in evaluation mode on the CPU.
        config: The resolved settings.
        data: Content of ``data.json``.
        summary: Content of ``summary.json``; of a registry version only the metrics.
        history: Lines of ``metrics.jsonl``, one for each epoch; empty for a registry version.
        files: Files of the run directory by relative path, without training data and the checkpoint to resume from;
            empty for a registry version.
        estimator: Content of ``estimator.json``; empty if the run was trained on the command line.
    """

    model: SequenceModel
    config: Config
    data: Mapping[str, Any]
    summary: Mapping[str, Any]
    history: tuple[Mapping[str, Any], ...]
    files: Mapping[str, bytes]
    estimator: Mapping[str, Any]

    @classmethod
    def read(cls, run_dir: str | Path, *, without: str | None = None) -> FittedRun:
        """Read a run directory.

        Args:
            run_dir: The directory.
            without: A file in it that is not kept in memory: the training data.

        Raises:
            CheckpointError: If there is no run, it has no trained weights or is not finished, or a file is damaged.
            ConfigError: If the run is not finished.
        """
        path = Path(run_dir)
        run = load_run(path)
        if run.summary is None:
            raise ConfigError(f"The run in '{run_dir}' is not finished. Go on with it by --resume, then load it.")
        files = {
            file.relative_to(path).as_posix(): file.read_bytes()
            for file in sorted(path.rglob("*"))
            # ``last`` holds the optimizer and is only needed to resume.
            if file.is_file() and file.name != without and file.stem != "last"
        }
        estimator = json.loads(files.get(ESTIMATOR_FILE, b"{}"))
        history = tuple(RunDirectory(path).records())
        return cls(run.model, run.config, run.data, run.summary, history, files, estimator)

    @classmethod
    def from_version(cls, version: Version) -> FittedRun:
        """Read a registry version.

        Raises:
            ConfigError: If the argument is none, or the version was not exported from a run.
            CheckpointError: If no model can be built from its files.
        """
        if not hasattr(version, "manifest"):
            raise ConfigError(
                f"from_registry takes a version, as Registry().get('NAME@ALIAS') of stablernn_registry returns it, got "
                f"{version!r}."
            )
        manifest = version.manifest.model_dump()
        settings = manifest["lineage"].get("config") if manifest.get("lineage") else None
        if not settings:
            raise ConfigError(
                f"'{version.ref}' was not exported from a run, so its settings are not known. Load its weights by "
                "stablernn.export.load_exported.reload."
            )
        model = reload(version.read("config.json"), version.read("weights.safetensors"))
        lineage = manifest["lineage"]["data"]
        keys = ("task", "labels", "features", "targets", "horizon", "context_length", "season", "frequency")
        data = {
            **lineage,
            **{key: manifest.get(key) for key in (*keys, "future", "static", "calendar")},
            "scaling": manifest["preprocessing"]["scaling"],
            "stamps": manifest["preprocessing"].get("stamps"),
        }
        summary = {"metrics": manifest.get("metrics") or {}, "certificate": manifest.get("certificate")}
        return cls(model, validate(settings), data, summary, (), {}, {})

    def write(self, folder: str | Path) -> None:
        """Write the files of the run into a folder, which becomes a run directory.

        Raises:
            ConfigError: If the folder holds a run already or cannot be written, or the model comes from a registry
                version.
        """
        if not self.files:
            raise ConfigError(
                "This estimator was loaded from a registry version, which is stored already. Load it by from_registry."
            )
        path = Path(folder)
        if RunDirectory(path).has_run:
            raise ConfigError(f"There is a run in '{folder}' already. Name another folder.")
        for name, content in self.files.items():
            file = path / name
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"Cannot make the folder '{file.parent}': {error.strerror}.") from error
            write_bytes(file, content)
