"""The base class of the estimators: constructor arguments as settings of a run, training, and what a fit leaves."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from stablernn.certificates.certificate import Certificate, certify
from stablernn.certificates.input_range import InputRange, training_range
from stablernn.certificates.stored_certificate import series_facts
from stablernn.errors import ConfigError, did_you_mean
from stablernn.estimators.argument_terms import ArgumentTerms, Form
from stablernn.estimators.fitted_run import ESTIMATOR_FILE, FittedRun, RegistryVersion
from stablernn.estimators.notebook import fit_as_html
from stablernn.estimators.stream import Stream
from stablernn.export import ExportReport, export
from stablernn.nn.models import SequenceModel
from stablernn.terms import use_terms
from stablernn.training.loop.launch import refuse_several_processes
from stablernn.training.run_directory import new_directory
from stablernn.training.search.budget import Budget
from stablernn.training.settings.config import AUTO, Config
from stablernn.training.settings.load import load_config
from stablernn.training.train_model import train

if TYPE_CHECKING:
    from stablernn.training.callbacks import Callback

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted, check_random_state
except ImportError as error:
    raise ImportError(
        "StableClassifier and StableForecaster need scikit-learn, which is not installed. Install it with pip install "
        "-e '.[sklearn]' in the checkout."
    ) from error

SETTINGS = {
    "cell": "model.cell",
    "hidden_size": "model.hidden_size",
    "num_layers": "model.num_layers",
    "members": "model.members",
    "epochs": "training.epochs",
    "max_steps": "training.max_steps",
    "batch_size": "training.batch_size",
    "lr": "training.lr",
    "patience": "training.patience",
    "certified": "training.certified",
    "device": "training.device",
}
"""Key of the settings of a run, by the parameter of an estimator that sets it."""
MAX_SEED = 2**32 - 1


class RunEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of estimators that train by the trainer of ``stablernn train``.

    A subclass declares ``task`` and ``parameter_keys``, writes its training data into a file and calls
    :meth:`_train_on_file`.
    """

    task: ClassVar[str]
    parameter_keys: ClassVar[Mapping[str, str]] = SETTINGS

    cell: str
    settings: Mapping[str, Any] | None
    random_state: Any
    budget: str | None
    runs_folder: str | Path | None
    callbacks: Sequence[Callback] | None

    # What a fit leaves; scikit-learn tells a fitted estimator by such names.
    run_: FittedRun

    @property
    def model_(self) -> SequenceModel:
        """The torch model, in evaluation mode on the CPU."""
        return self._fitted.model

    @property
    def config_(self) -> Config:
        """The resolved settings of the training, as ``config.yaml`` of a run holds them."""
        return self._fitted.config

    @property
    def history_(self) -> list[dict[str, Any]]:
        """The figures of each epoch: ``epoch``, ``step``, ``lr``, ``train_loss``, ``validation``, ``seconds``."""
        return [dict(record) for record in self._fitted.history]

    @property
    def summary_(self) -> dict[str, Any]:
        """The summary of the run: metrics by split, steps, certificate, notes on the data, warnings."""
        return dict(self._fitted.summary)

    def certify(self, inputs_within: Any = None) -> Certificate:
        """Prove what holds of the recurrent layers, see :func:`stablernn.certify`.

        Args:
            inputs_within: Range of raw inputs to which the certificate is restricted; ``training``: that of the
                training data, half as wide again; None: inputs of any size.

        Raises:
            NotFittedError: Before ``fit``.
            ConfigError: If the range does not fit the model.
        """
        if inputs_within == "training":
            inputs_within = self._training_range()
        return certify(self.model_, inputs_within=inputs_within)

    def export(self, folder: str | Path, *, formats: Sequence[str] = ("onnx",)) -> ExportReport:
        """Write graphs, weights, parity report and certificate into a folder, see :func:`stablernn.export`.

        Raises:
            NotFittedError: Before ``fit``.
            ConfigError: If a format is unknown.
            ParityError: If a graph does not compute what the model computes.
        """
        data = self._fitted.data
        steps = data.get("context_length") or data.get("longest")
        inputs, facts = self._training_range(), series_facts(data)
        return export(self.model_, folder, formats=formats, steps=steps, inputs_within=inputs, **facts)

    def stream(self) -> Stream:
        """Return a stream that takes samples one by one, computed by the exported step graph.

        Raises:
            NotFittedError: Before ``fit``.
            ConfigError: If the model resamples complete sequences, and so cannot stream.
        """
        return Stream(self.model_, labels=self._stream_labels())

    def save(self, folder: str | Path) -> None:
        """Write the run into a folder, for :meth:`from_run` and the commands ``export``, ``certify`` and ``predict``.

        Training data and the state of the optimizer are not written; with ``runs_folder`` the run of each fit keeps
        both.

        Raises:
            NotFittedError: Before ``fit``.
            ConfigError: If there is a run in the folder, or the model comes from a registry version.
        """
        self._fitted.write(folder)

    @classmethod
    def from_run(cls, run_dir: str | Path) -> Self:
        """Return a fitted estimator from a run of the command line or a folder of :meth:`save`.

        Raises:
            CheckpointError: If there is no run with trained weights, or a file is damaged.
            ConfigError: If the run is not finished, or is of another task.
        """
        return cls._from_fitted(FittedRun.read(run_dir), f"The run in '{run_dir}'")

    @classmethod
    def from_registry(cls, version: RegistryVersion) -> Self:
        """Return a fitted estimator from a registry version.

        Args:
            version: As ``stablernn_registry.Registry().get("NAME@ALIAS")`` returns it.

        Raises:
            ConfigError: If the argument is no version, it was not exported from a run, or is of another task.
            CheckpointError: If no model can be built from its files.
        """
        return cls._from_fitted(FittedRun.from_version(version), f"'{getattr(version, 'ref', version)}'")

    @classmethod
    def _from_fitted(cls, run: FittedRun, subject: str) -> Self:
        if run.data["task"] != cls.task:
            raise ConfigError(
                f"{subject} is for the task '{run.data['task']}', and {cls.__name__} is for '{cls.task}'. Take the "
                "estimator of its task."
            )
        by_key = run.config.by_key()
        parameters = {name: by_key[key] for name, key in cls.parameter_keys.items()}
        # A length is stored in both units; one of them is enough to train again.
        if parameters.get("max_steps") is not None:
            parameters["epochs"] = None
        defaults = Config.model_validate({"data": {"source": ""}}).by_key()
        settings = {
            key: value
            for key, value in by_key.items()
            if key not in cls.parameter_keys.values() and value != defaults.get(key) and _is_free(key)
        }
        estimator = cls()
        estimator.set_params(**parameters, random_state=run.config.training.seed, settings=settings)
        estimator._set_fitted(run)
        return estimator

    def _set_fitted(self, run: FittedRun) -> None:
        """Set the attributes of a fitted estimator."""
        self.run_ = run

    @property
    def _fitted(self) -> FittedRun:
        check_is_fitted(self, "run_")
        return self.run_

    def _stream_labels(self) -> Sequence[Any] | None:
        return None

    def _training_range(self) -> InputRange | None:
        return training_range(self._fitted.data) if self._fitted.data.get("input_range") else None

    def _train_on_file(
        self,
        filename: str,
        write: Callable[[Path], None],
        data_settings: Mapping[str, Any],
        facts: Mapping[str, Any],
        form: Form = "array",
        channels: Sequence[str] = (),
    ) -> FittedRun:
        """Train on data that is written into the directory of the run.

        Args:
            filename: Name of the file.
            write: Writes the data to a path.
            data_settings: Settings that say how the file is read, by dotted key.
            facts: Content of ``estimator.json``.
            form: Form of the argument, for messages.
            channels: Columns of an array, for messages.

        Raises:
            ConfigError: If a parameter or a setting is not allowed.
            DataError: If the data cannot be used.
            TrainingError: If training fails.
        """
        # A fit that fails leaves none, instead of an earlier one that does not go with the parameters.
        self.__dict__.pop("run_", None)
        refuse_several_processes("An estimator", "Call `stablernn.training.train` on a file to share it by processes.")
        self._check_length()
        budget = self._check_budget()
        with (
            use_terms(ArgumentTerms(filename, self.parameter_keys, form, channels)),
            tempfile.TemporaryDirectory(prefix="stablernn-fit-") as temporary,
        ):
            directory = Path(temporary)
            # Settings are checked before a directory is left behind.
            config = self._config(directory / filename, data_settings)
            if self.runs_folder is not None:
                directory = new_directory(Path(filename).stem, config.model.cell, Path(self.runs_folder))
                config = self._config(directory / filename, data_settings)
            write(directory / filename)
            (directory / ESTIMATOR_FILE).write_text(json.dumps(facts) + "\n", encoding="utf-8")
            train(config, directory, budget=budget, callbacks=self.callbacks or ())
            return FittedRun.read(directory, without=filename)

    def _check_budget(self) -> Budget | None:
        if self.budget is None:
            return None
        if self.cell != AUTO:
            raise ConfigError(
                f"A budget is for choosing a cell, got budget='{self.budget}' for cell='{self.cell}'. Take "
                "cell='auto', or leave the budget out."
            )
        return Budget.parse(self.budget)

    def _check_length(self) -> None:
        """Refuse two lengths of the training, of which merged settings would keep the last.

        Raises:
            ConfigError: If both are given.
        """
        epochs, max_steps = getattr(self, "epochs", None), getattr(self, "max_steps", None)
        if epochs is not None and max_steps is not None:
            raise ConfigError(f"epochs and max_steps exclude each other, got {epochs} and {max_steps}.")

    def _config(self, source: Path, data_settings: Mapping[str, Any]) -> Config:
        options = {key: _plain(getattr(self, name)) for name, key in self.parameter_keys.items()}
        options["training.seed"] = self._seed()
        # Settings of the user come later and win.
        if self.runs_folder is None:
            # Nobody would see the figures, and they take longer to draw than a small model to train.
            options["training.plots"] = False
        return load_config(options={**options, **data_settings, **self._checked_settings(), "data.source": str(source)})

    def _checked_settings(self) -> dict[str, Any]:
        """Return the settings that have no parameter.

        Raises:
            ConfigError: If one has a parameter, or names the data.
        """
        settings = dict(self.settings or {})
        by_key = {key: name for name, key in self.parameter_keys.items()} | {"training.seed": "random_state"}
        for key in settings:
            if key in by_key:
                raise ConfigError(f"'{key}' is the parameter {by_key[key]}. Set it there, and not in settings.")
            if key in ("data.source", "data.test"):
                raise ConfigError(f"'{key}' names a file, and an estimator is fitted to arrays. Leave it out.")
            if "." not in key:
                hint = did_you_mean(key, self.parameter_keys)
                raise ConfigError(
                    f"A key of settings has a section and a name, such as 'training.clip_norm', got '{key}'.{hint}"
                )
        return {key: _plain(value) for key, value in settings.items()}

    def _seed(self) -> int:
        """Return the seed of the run: ``random_state`` if it is a number, else one drawn from it."""
        if isinstance(self.random_state, int | np.integer) and 0 <= self.random_state <= MAX_SEED:
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _repr_html_inner(self) -> str:
        html = str(self._html_repr())
        return html if not hasattr(self, "run_") else html + fit_as_html(self.run_)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_inner()
        return bundle


def _is_free(key: str) -> bool:
    """Return True for a setting that a fit on other data may take over."""
    if key in ("data.stamps", "data.channels_as_series", "data.window_stride", "data.validation_fraction"):
        return True
    section, _, name = key.partition(".")
    # What the data and the machine decide is decided again.
    return section in ("model", "training") and name not in ("seed", "engine", "plots", "time", "time_step", "max_dt")


def _plain(value: Any) -> Any:
    """Return a number of numpy, as searches over parameters draw them, as one of Python."""
    return value.item() if isinstance(value, np.generic) else value
