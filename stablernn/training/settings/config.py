"""The settings of a run: what they are called, what they may be, what they are when nobody says.

One tree with four sections (``data``, ``task``, ``model``, ``training``) is read from YAML, overridden key by key, and
frozen. A key whose default is None means "what is recommended for this cell and this data";
:func:`~stablernn.training.settings.resolve.resolve` puts the value in its place, so that a run always stores what it
used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from stablernn.data.options import Count, DataOptions, Seed, Share, as_tuple
from stablernn.errors import ConfigError, did_you_mean

Task = Literal["classify", "forecast", "predict-next"]
OptimizerName = Literal["adamw", "adam", "sgd", "rmsprop"]
ScheduleName = Literal["constant", "cosine", "one-cycle", "step", "plateau"]
DeviceName = Literal["auto", "cpu", "cuda"]


Positive = Annotated[float, Field(gt=0)]


Levels = Annotated[tuple[float, ...], BeforeValidator(as_tuple)]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class DataConfig(DataOptions, Section):
    """Which data, and how its files are read."""

    source: str
    """Name of a dataset or path of a file."""
    test: str | None = None
    """File with the test split; None: what the source itself brings."""


class TaskConfig(Section):
    """What is asked of the model."""

    name: Task | None = None
    """classify, forecast or predict-next; None: what the data is for."""
    horizon: Count | None = None
    """Steps to forecast; None: the dataset's."""
    context_length: Count | None = None
    """Steps seen before a forecast; None: from the season, or chosen by validation where the season is 1."""
    season: Count | None = None
    """Steps of the main season, 1 = none; None: from the frequency."""
    quantiles: Levels | None = None
    """Levels between 0 and 1, ascending; an empty list for none. None: .1, .5, .9."""

    @model_validator(mode="after")
    def _check(self) -> TaskConfig:
        levels = self.quantiles
        if levels and (list(levels) != sorted(set(levels)) or levels[0] <= 0 or levels[-1] >= 1):
            raise ValueError(f"task.quantiles must be ascending levels between 0 and 1, got {list(levels)}.")
        return self


class ModelConfig(Section):
    """The network."""

    cell: str
    """Key of the catalog, such as 'lipschitz'."""
    preset: Literal["practical", "paper"] = "practical"
    """Whose defaults the cell's options and the training settings take."""
    hidden_size: Count = 64
    """Length of the state of each layer."""
    num_layers: Count = 1
    """Layers, one above the other."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a layer's outputs zeroed before the next layer, in training only."""
    readout: Literal["last", "mean", "max", "all"] | None = None
    """What the head sees of the outputs over time, 'all': the three side by side; None: recommended."""
    patch_size: Count | None = None
    """Samples that the first layer sees at once; None: recommended."""
    patch_stride: Count | None = None
    """Samples after which the layers advance by one step; None: recommended, or patch_size where that is given."""
    patch_embedding: Annotated[int, Field(ge=0)] | None = None
    """Length of the vector that a patch is turned into by a linear map and a GELU, 0 for none; None: recommended."""
    members: Count = 1
    """Networks side by side that differ by their first weights, whose answers are averaged."""
    head_dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of what the head reads zeroed in training; None: recommended."""
    head: Literal["direct", "recursive"] = "direct"
    """Of a forecast: all steps at once, or one, from which the next is made by taking the forecast for a value."""
    skip: Literal["none", "linear"] | None = None
    """Of a forecast: a linear map of the context beside the layers; None: recommended."""
    skip_strength: Positive = 0.01
    """Ridge penalty of the linear skip's first weights, as a share of the mean square of a scaled value."""
    scaling: Literal["standard", "window", "context"] | None = None
    """By mean and deviation of the training data, or also by those of the sequence so far (window), or of the last
    steps of the context (context); None: recommended."""
    window: Annotated[int, Field(ge=2)] | None = None
    """Steps that the scalings 'window' and 'context' remember; None: the context, or the longest sequence."""
    season: Count | None = None
    """Steps of a season for the scaling 'context'; None: the data's, where it fits twice into the window, else 1."""
    log: bool | None = None
    """Whether the scaling 'context' takes logarithms; None: where all values are positive, some ten times others."""
    mask_channel: Literal[True, False, "auto"] = "auto"
    """Whether the network is told which values are missing; auto: if any is in training."""
    time: Literal["auto", "dt", "ignore"] = "auto"
    """Whether the cell is told how much time lies between two steps; auto: if the data says when its steps were."""
    time_step: Positive | None = None
    """The regular step, dt=1, in the unit of the data's time stamps; None: the median of the training file."""
    max_dt: Annotated[float, Field(ge=1)] | None = None
    """Longest time between two steps that the model takes, in regular steps; None: the longest in the data."""
    embedding_size: Annotated[int, Field(ge=0)] | None = None
    """Length of the learned vector that stands for a token, 0 for a unit vector; None: 0 for up to 256 different
    tokens, else hidden_size."""
    predict_change: bool = False
    """Whether numbers of the next step are answered as the change from the last observed ones."""
    cell_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the cell; see `stablernn cells show`."""

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        users = {"window": ("window", "context"), "season": ("context",), "log": ("context",)}
        for key, kinds in users.items():
            if getattr(self, key) not in (None, False) and self.scaling not in (None, *kinds):
                raise ValueError(
                    f"model.{key} is only used by the scaling{'s'[: len(kinds) - 1]} "
                    f"{' and '.join(map(repr, kinds))}, got model.scaling='{self.scaling}'."
                )
        size, stride = self.patch_size, self.patch_stride
        if size is not None and stride is not None and stride > size:
            raise ValueError(
                "model.patch_stride is at most model.patch_size, so that no sample is skipped, got "
                f"{stride} and {size}."
            )
        if self.time == "ignore" and (self.time_step is not None or self.max_dt is not None):
            raise ValueError("model.time_step and model.max_dt are not used where model.time is 'ignore'.")
        if self.dropout and self.num_layers == 1:
            raise ValueError(
                f"model.dropout acts between layers and needs model.num_layers of 2 or more, got "
                f"model.dropout={self.dropout:g} with 1 layer."
            )
        return self


class TrainingConfig(Section):
    """How the model is fitted."""

    epochs: Count | None = None
    """Passes over the training data; None: recommended."""
    max_steps: Count | None = None
    """Optimizer steps, in place of epochs."""
    batch_size: Count | None = None
    """Samples in a step; None: recommended."""
    lr: Positive | None = None
    """Learning rate, the largest of its schedule; None: recommended."""
    orthogonal_lr: Positive | None = None
    """Learning rate of the parameters behind orthogonal and unitary matrices; None: recommended, else a tenth of lr."""
    optimizer: OptimizerName | None = None
    """None: recommended."""
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    """Decoupled in adamw, an L2 term in the others; None: recommended."""
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Of sgd and rmsprop; None: recommended."""
    schedule: ScheduleName | None = None
    """Course of the learning rate; None: recommended. one-cycle ends near 0, which is all there is of it in a run of a
    single step; for that take constant. plateau drops it after every epoch whose validation metric is no better than
    the best so far."""
    step_epochs: Count | None = None
    """Epochs between two drops of the schedule 'step'; None: a third of the run."""
    lr_decay: Share | None = None
    """Factor of a drop of the schedules 'step' and 'plateau'; None: 0.1 and 0.5."""
    clip_norm: Annotated[float, Field(ge=0)] | None = None
    """Largest l2 norm of the gradient, of each member's where there are several, 0 for no clipping; None: recommended,
    which is none for most cells."""
    refit: bool = False
    """Whether to train on the validation split as well and keep the weights after the last step, with nothing to choose
    them by: for small data, where a hold-out is a coin toss."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of a label that is spread over all classes; None: recommended."""
    class_weights: Literal["none", "balanced"] = "none"
    """How much a sequence counts: all the same, or each class as much as any other."""
    time_warp: Annotated[float, Field(ge=0, lt=0.5)] | None = None
    """How far half of the training sequences are stretched and squeezed in time at random, as a share of their length;
    0: not at all. None: recommended."""
    jitter: Annotated[float, Field(ge=0)] | None = None
    """Standard deviation of the noise on the values of training sequences, as a share of that of the data; None:
    recommended."""
    rescale: Annotated[float, Field(ge=0)] | None = None
    """Standard deviation of the factor by which training sequences are made larger or smaller; None: recommended."""
    warm_up: Annotated[int, Field(ge=0)] | None = None
    """Steps by which the contexts that a forecast is trained on are longer, at random up to this, so that a state that
    has seen a long stream is one that the model knows; None: recommended."""
    certified: bool = False
    """Whether each step ends inside the region in which the cell's step is proved to contract, or, of cells that are
    non-expansive by construction, not to expand; see docs/stability.md."""
    certified_margin: Annotated[float, Field(ge=1e-5, le=0.5)] | None = None
    """By how much the proved rate of a certified cell stays below 1; None: 0.001, and nothing where the cell is
    certified by construction."""
    skip_lr: Annotated[float, Field(ge=0)] | None = None
    """Learning rate of a forecast's linear skip, 0 to leave it as it was first fitted; None: a thirtieth of lr."""
    calibrate: bool | None = None
    """Whether, after training, the validation split sets the temperature of probabilities, or moves a forecast's
    quantiles so that they cover what they say; None: where there are such a split and such answers."""
    bptt_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps after which the gradient of the task 'predict-next' is cut off while the state goes on; 0: whole sequences.
    None: recommended for the dataset, else 150 for running text and 0 for sequences."""
    patience: Count | None = None
    """Epochs without a better validation metric after which training stops; None: never."""
    keep_epochs: bool = False
    """Whether the weights after each epoch stay in the run, as checkpoints/epoch-1 and so on, beside best and last."""
    plots: bool = True
    """Whether a run ends with pictures of its curves and predictions; drawing can take longer than training a small
    model."""
    seed: Seed = 0
    """Of initial weights, order of samples and dropout."""
    device: DeviceName = "auto"
    """auto: a GPU where there is one."""
    threads: Count = 1
    """CPU threads of torch. One is fastest for states up to some hundred units, most of all where cores are shared, and
    gives the same numbers on every machine size."""

    @model_validator(mode="after")
    def _check(self) -> TrainingConfig:
        if self.epochs is not None and self.max_steps is not None:
            raise ValueError(
                f"training.epochs and training.max_steps exclude each other, got {self.epochs} and {self.max_steps}."
            )
        if self.momentum is not None and self.optimizer in ("adam", "adamw"):
            raise ValueError(
                f"training.momentum is only used by the optimizers 'sgd' and 'rmsprop', "
                f"got training.optimizer='{self.optimizer}'."
            )
        if self.certified_margin is not None and not self.certified:
            raise ValueError(
                "training.certified_margin is only used with training.certified=true, got "
                f"training.certified_margin={self.certified_margin:g}."
            )
        if self.refit and (self.patience is not None or self.schedule == "plateau" or self.calibrate):
            raise ValueError(
                "training.refit leaves no validation split, which training.patience, training.calibrate and 'plateau' "
                "need."
            )
        for key, users in (("step_epochs", ("step",)), ("lr_decay", ("step", "plateau"))):
            if getattr(self, key) is not None and self.schedule not in (None, *users):
                raise ValueError(
                    f"training.{key} is only used by the schedule{'s'[: len(users) - 1]} "
                    f"{' and '.join(map(repr, users))}, got training.schedule='{self.schedule}'."
                )
        return self


class Config(Section):
    """All settings of a run."""

    data: DataConfig
    task: TaskConfig = Field(default_factory=TaskConfig)
    model: ModelConfig
    training: TrainingConfig = Field(default_factory=TrainingConfig)

    def as_stored(self) -> Config:
        """The settings as a run's directory or a registry version holds them: resolved.

        Those written before there was ``model.time`` say nothing of it; times were not used then.
        """
        if self.model.time != "auto":
            return self
        return self.model_copy(update={"model": self.model.model_copy(update={"time": "ignore"})})

    def tree(self) -> dict[str, Any]:
        """The settings as a tree of JSON types."""
        return self.model_dump(mode="json")


_SECTIONS: dict[str, type[Section]] = {
    "data": DataConfig,
    "task": TaskConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
}


def load_config(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
) -> Config:
    """The settings from a file and what is laid over it; what comes later wins.

    Args:
        path: A YAML file with sections ``data``, ``task``, ``model`` and ``training``.
        overrides: ``"training.lr=0.01"`` and the like; the value is read as YAML. They come last.
        defaults: A tree that lies below the file.
        options: Values by dotted key, between file and overrides; those that are None are passed over.

    Raises:
        ConfigError: If the file cannot be read, a key does not exist, or a value is not allowed.

    Example:
        >>> load_config(overrides=["data.source=digits", "model.cell=lipschitz", "training.lr=1e-3"]).training.lr
        0.001
    """
    layers = [dict(defaults or {}), _read(path) if path is not None else {}]
    layers += [_branch(key, value) for key, value in (options or {}).items() if value is not None]
    layers += [_parse_override(text) for text in overrides]
    return _laid_over_each_other(layers)


def laid_over(stored: Config, given: Config) -> Config:
    """The stored settings with those in place that ``given`` was made with; what it left to defaults stays as stored.

    Raises:
        ConfigError: If the two do not go together.
    """
    return _laid_over_each_other([stored.tree(), given.model_dump(mode="json", exclude_unset=True)])


def _laid_over_each_other(layers: Sequence[Mapping[str, Any]]) -> Config:
    tree: dict[str, Any] = {}
    for layer in layers:
        _replace_length(tree, layer)
        tree = _merge(tree, layer)
    return validate(tree)


def validate(tree: Mapping[str, Any]) -> Config:
    """The settings in a tree of JSON types.

    Raises:
        ConfigError: If a key does not exist or is missing, or a value is not allowed.
    """
    try:
        return Config.model_validate({key: {} if value is None else value for key, value in tree.items()})
    except ValidationError as error:
        found = error.errors()
        # A key that is not there explains why another is missing.
        raise ConfigError(_sentence(min(found, key=lambda one: one["type"] != "extra_forbidden"))) from None


class _Loader(yaml.SafeLoader):
    """Safe YAML with the floats and booleans of YAML 1.2 and without keys that silently replace another.

    ``1e-3`` is a number; ``no``, ``yes``, ``on`` and ``off`` are words, such as the name of a column.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = _parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration file '{path}': {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' is not valid YAML: {_reason(error)}.") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"'{path}' must hold the sections {_words(_SECTIONS)}, got {tree!r}.")
    return tree


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return str(error)


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"An override must look like training.lr=0.01, got '{text}'.")
    try:
        return _branch(key.strip(), _parse_yaml(value))
    except yaml.YAMLError as error:
        raise ConfigError(f"The value of '{key.strip()}' is not valid YAML: {_reason(error)}.") from error


def _branch(key: str, value: Any) -> dict[str, Any]:
    """``{"a": {"b": value}}`` for the key ``a.b``."""
    for word in reversed(key.split(".")):
        value = {word: value}
    return dict(value)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return merged


def _replace_length(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Let ``epochs`` of a later layer take the place of ``max_steps`` of an earlier one, and the other way round."""
    later, earlier = above.get("training"), below.get("training")
    if isinstance(later, Mapping) and isinstance(earlier, Mapping):
        for key, other in (("epochs", "max_steps"), ("max_steps", "epochs")):
            if later.get(key) is not None and other not in later:
                below["training"] = {**earlier, other: None}


def _sentence(error: ErrorDetails) -> str:
    """One pydantic error in the words of this configuration."""
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown_key(path)
    if error["type"] == "missing":
        return f"{path} is missing: {_describe(path)}"
    if error["type"] == "value_error":
        return str(error.get("ctx", {})["error"])
    given = error["input"]
    if path in _SECTIONS:
        return f"{path} must be a section with keys ({_words(_keys(path))}), got {given!r}."
    rule = error["msg"].replace("Input should be", "must be").replace("valid tuple", "list")
    allowed = re.findall(r"'([^']+)'", error.get("ctx", {}).get("expected", ""))
    hint = did_you_mean(given, allowed) if isinstance(given, str) else ""
    return f"{path} {rule}, got {given!r}.{hint}"


def _unknown_key(path: str) -> str:
    section, _, word = path.rpartition(".")
    # A key that stands in the wrong section, or in none, is meant as written; else it is a typing mistake.
    meant = [f"{other}.{word}" for other in _SECTIONS if word in _keys(other)]
    if not meant:
        close = get_close_matches(word, _keys(section) or _SECTIONS, n=1)
        meant = [f"{section}.{name}" if section else name for name in close]
    hint = f" Did you mean '{meant[0]}'?" if meant else ""
    where = f"'{section}' has" if section in _SECTIONS else "Sections are"
    return f"Unknown key '{path}'.{hint} {where} {_words(_keys(section) or _SECTIONS)}."


def _keys(section: str) -> list[str]:
    return list(_SECTIONS[section].model_fields) if section in _SECTIONS else []


def _describe(path: str) -> str:
    section, _, key = path.rpartition(".")
    if section not in _SECTIONS:
        return f"the settings need this section, with keys {_words(_keys(path))}."
    return f"{_SECTIONS[section].model_fields[key].description}"


def _words(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(names)
