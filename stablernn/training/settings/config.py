"""The settings of a run: their keys, allowed values and defaults.

One tree with four sections (``data``, ``task``, ``model``, ``training``) is read from YAML, overridden key by key, and
frozen. A key whose default is None means "what is recommended for this cell and this data";
:func:`~stablernn.training.resolve.resolve` puts the value in its place, so that a run always stores what it
used.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from stablernn.data.options import (
    CommandOption,
    Count,
    DataOptions,
    LoadOptions,
    Seed,
    Share,
    TaskName,
    add_descriptions,
    as_tuple,
)
from stablernn.terms import terms

OptimizerName = Literal["adamw", "adam", "sgd", "rmsprop", "adagrad"]
ScheduleName = Literal["constant", "cosine", "one-cycle", "step", "plateau"]
DeviceName = Literal["auto", "cpu", "cuda"]


AUTO = "auto"
"""Cell of settings that are to be chosen by the data."""

MAX_CONV_LAYERS = 10
"""Convolutions whose receptive field, of 2,047 samples, is as long as any patch that is of use."""
DEFAULT_CONV_CHANNELS = 16

Positive = Annotated[float, Field(gt=0)]


Levels = Annotated[tuple[float, ...], BeforeValidator(as_tuple)]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, json_schema_extra=add_descriptions
    )


class DataConfig(DataOptions, Section):
    """The data and how its files are read."""

    # A file of settings has text, not paths. To narrow the types is sound, since the model is frozen.
    source: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        str,
        CommandOption(
            "Dataset name (see `data list`), file (.csv, .parquet, .xlsx, .npz, .ts, .tsv, .arff, .txt) or "
            "folder of recordings.",
            name="data",
        ),
    ]
    """Name of a dataset or path of a file."""
    test: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        str | None, CommandOption("File with the test split; default: the NAME_TEST next to a NAME_TRAIN.")
    ] = None
    """File with the test split; None: what the source itself brings."""


class TaskConfig(Section):
    """The task of the model."""

    name: Annotated[TaskName | None, CommandOption("Task; default: the one that fits the data.", name="task")] = None
    """classify, forecast, predict-next or simulate; None: the task of the data."""
    horizon: Annotated[Count | None, CommandOption("Steps to forecast; default: the dataset's, else one season.")] = (
        None
    )
    """Steps to forecast; None: the dataset's."""
    context_length: Annotated[
        Count | None,
        CommandOption(
            "Steps before a forecast that the model sees; default: chosen by validation with the linear forecast."
        ),
    ] = None
    """Steps seen before a forecast; None: chosen by validation with the linear forecast."""
    season: Annotated[
        Count | None, CommandOption("Steps of the main season, 1 = none; default: from the frequency.")
    ] = None
    """Steps of the main season, 1 = none; None: from the frequency."""
    quantiles: Levels | None = None
    """Levels between 0 and 1, ascending; an empty list for none. None: .1, .5, .9."""

    @model_validator(mode="after")
    def _check(self) -> TaskConfig:
        levels = self.quantiles
        if levels and (list(levels) != sorted(set(levels)) or levels[0] <= 0 or levels[-1] >= 1):
            raise ValueError(
                f"{terms().key('task.quantiles')} must be ascending levels between 0 and 1, got {list(levels)}."
            )
        return self


class ModelConfig(Section):
    """The network."""

    cell: Annotated[
        str,
        CommandOption(
            "Key of the recurrent cell (see `cells list`); default: auto, chosen with other settings by "
            "cross-validation on the training data."
        ),
    ] = AUTO
    """Key of the catalog, such as 'lipschitz'; auto: chosen with other settings by cross-validation on the training
    data, see docs/guides/choosing.md."""
    preset: Annotated[
        Literal["practical", "paper"], CommandOption("Source of the cell's defaults; default: practical.")
    ] = "practical"
    """Source of the defaults of the cell's options and of the training settings."""
    engine: Annotated[
        str | None, CommandOption("Engine that runs the steps, such as loop; default: the fastest for the cell.")
    ] = None
    """Engine that runs the steps in training, such as 'loop'; None: the fastest that supports the cell."""
    hidden_size: Annotated[Count, CommandOption("Length of each layer's state; default: 64.")] = 64
    """Length of the state of each layer."""
    num_layers: Annotated[Count, CommandOption("Number of stacked recurrent layers; default: 1.")] = 1
    """Layers, each on the outputs of the one below."""
    dropout: Annotated[
        float, Field(ge=0, lt=1), CommandOption("Dropout probability between layers, 0 to 1; default: 0.")
    ] = 0.0
    """Share of a layer's outputs zeroed before the next layer, in training only."""
    patch_size: Annotated[
        Count | None, CommandOption("Samples in one step of the layers; default: by the length of the sequences.")
    ] = None
    """Samples that the first layer reads at once; None: recommended."""
    patch_stride: Annotated[
        Count | None, CommandOption("Samples from one step of the layers to the next; default: --patch-size if given.")
    ] = None
    """Samples after which the layers advance by one step; None: recommended, or patch_size where that is given."""
    readout: Annotated[
        Literal["last", "mean", "max", "all"] | None,
        CommandOption("Pooling of the outputs over time for the head; default: all to classify, last to forecast."),
    ] = None
    """Summary over time of the outputs that the head reads, 'all': the three concatenated; None: recommended."""
    patch_embedding: Annotated[int, Field(ge=0)] | None = None
    """Length of the vector that a linear map and a GELU turn a patch into, 0 for none; None: recommended."""
    conv_layers: Annotated[int, Field(ge=0, le=MAX_CONV_LAYERS)] = 0
    """Convolutions over a patch in front of its embedding, with kernel size 3 and dilations 1, 2, 4 and so on, each
    followed by a GELU; 0: none."""
    conv_channels: Count = DEFAULT_CONV_CHANNELS
    """Channels of each of these convolutions."""
    resample_steps: Annotated[int, Field(ge=2)] | None = None
    """Classification: samples to which every sequence is resampled over its whole length, with the logarithm of its
    length as a further feature; the model then needs complete sequences and cannot stream. None: samples as they
    are."""
    members: Annotated[Count, CommandOption("Networks of an ensemble, whose answers are averaged; default: 1.")] = 1
    """Ensemble members: networks with different first weights, whose answers are averaged."""
    head_dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of the inputs of the head zeroed in training; None: recommended."""
    head: Literal["direct", "recursive"] = "direct"
    """Of a forecast: all steps at once, or one step, fed back as a value to forecast the next."""
    skip: Literal["none", "linear"] | None = None
    """Of a forecast: a linear map of the context in parallel with the layers; None: recommended."""
    non_negative: bool | None = None
    """Of a forecast with a direct head: cut mean and quantiles off at zero or above it; None: if no training value of
    a target is negative."""
    skip_strength: Positive | None = None
    """Ridge penalty of the linear skip's first weights, as a share of the mean square of a value's distance from the
    mean of its window; from 1e6 on these are the weights of skip_prior. None: chosen by validation."""
    skip_prior: Literal["mean", "drift"] | Count | None = None
    """Forecast that the penalty pulls the skip to: the mean of the context, a drift, or the value so many steps before,
    1 for the last one; None: chosen by validation."""
    skip_seasons: Annotated[tuple[Count, ...], BeforeValidator(as_tuple)] | None = None
    """Seasons around whose multiples the skip reads values beside the last ones; empty: it reads the whole context.
    None: chosen by validation."""
    scaling: Literal["standard", "none", "log", "window", "context"] | None = None
    """By mean and deviation of the training data (standard) or of its logarithms (log), also by those of the sequence
    so far (window) or of the last steps of the context (context), or not at all (none); None: recommended."""
    window: Annotated[int, Field(ge=2)] | None = None
    """Steps that the scalings 'window' and 'context' remember; None: the context, or the longest sequence."""
    season: Count | None = None
    """Steps of a season for the scaling 'context'; None: the data's, where it fits twice into the window, else 1."""
    log: bool | None = None
    """True if the scaling 'context' takes logarithms, so that a forecast is a median; None: chosen by validation, where
    all values are positive."""
    mask_channel: Literal[True, False, "auto"] = "auto"
    """True to give the network a mask of missing values as inputs; auto: if any value is missing in training."""
    time: Literal["auto", "dt", "ignore"] = "auto"
    """Use of the time between two steps by the cell; auto: dt if the data says when its steps were."""
    time_step: Positive | None = None
    """The regular step, dt=1, in the unit of the data's timestamps; None: the median of the training file."""
    max_dt: Annotated[float, Field(ge=1)] | None = None
    """Longest time between two steps that the model takes, in regular steps; None: the longest in the data."""
    embedding_size: Annotated[int, Field(ge=0)] | None = None
    """Length of the learned vector that stands for a token, 0 for a unit vector; None: 0 for up to 256 different
    tokens, else hidden_size."""
    predict_change: bool = False
    """Predict numbers of the next step as changes from the last observed ones."""
    cell_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the cell; see `stablernn cells show`."""

    # Only what settings contradict among themselves; what depends on cell and data is refused when they are resolved.
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
        if self.conv_channels != DEFAULT_CONV_CHANNELS and not self.conv_layers:
            raise ValueError(
                f"model.conv_channels is only used with model.conv_layers of 1 or more, got {self.conv_channels} "
                "channels and no layers."
            )
        if self.time == "ignore" and (self.time_step is not None or self.max_dt is not None):
            raise ValueError("model.time_step and model.max_dt are not used where model.time is 'ignore'.")
        # Dropout after the last layer is head_dropout.
        if self.dropout and self.num_layers == 1:
            raise ValueError(
                f"model.dropout acts between layers and needs {terms().key('model.num_layers')} of 2 or more, got "
                f"model.dropout={self.dropout:g} with 1 layer."
            )
        return self


class TrainingConfig(Section):
    """Training of the model."""

    method: Literal["gradient", "closed-form", "gauss-newton"] = "gradient"
    """gradient: minibatches and an optimizer. closed-form: recurrent weights stay as they are drawn, or as
    they are moved once into the certified region, and ridge regression solves for the head in one pass over the data,
    as in an echo state network; no setting of optimizer, schedule, length or augmentation goes with it. The cell
    'rocket' takes closed-form unless another method is set, which it refuses. gauss-newton: the cell 'ren' of the task
    'simulate' is fitted to the error of its free run, and takes this method unless another one is set."""
    epochs: Annotated[
        Count | None,
        CommandOption("Passes over the training data; default: depends on the cell and the amount of data."),
    ] = None
    """Passes over the training data; None: recommended."""
    max_steps: Annotated[Count | None, CommandOption("Optimizer steps, instead of --epochs.")] = None
    """Optimizer steps, in place of epochs."""
    batch_size: Annotated[
        Count | None, CommandOption("Samples in a step; default: depends on the cell and the number of samples.")
    ] = None
    """Samples in a step; None: recommended."""
    lr: Annotated[
        Positive | None, CommandOption("Peak learning rate of the schedule; default: recommended for the cell.")
    ] = None
    """Learning rate, the largest of its schedule; None: recommended."""
    orthogonal_lr: Positive | None = None
    """Learning rate of the parameters behind orthogonal and unitary matrices; None: recommended, else a tenth of lr."""
    optimizer: Annotated[OptimizerName | None, CommandOption("Optimizer; default: recommended for the cell.")] = None
    """None: recommended."""
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    """Decoupled in adamw, an L2 term in the others; None: recommended."""
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Of sgd and rmsprop; None: recommended."""
    schedule: ScheduleName | None = None
    """Course of the learning rate; None: recommended. one-cycle ends near 0, which is its only rate in a run of a
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
    """Train on the validation split as well and keep the weights after the last step, with nothing to choose them by:
    for small data, where a hold-out is a coin toss."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of a label that is spread over all classes; None: recommended."""
    class_weights: Literal["none", "balanced"] = "none"
    """Weights of the sequences: all equal, or each class as much as any other."""
    time_warp: Annotated[float, Field(ge=0, lt=0.5)] | None = None
    """Random stretching and squeezing in time of half of the training sequences, as a share of their length; 0: none.
    None: recommended."""
    jitter: Annotated[float, Field(ge=0)] | None = None
    """Standard deviation of the noise on the values of training sequences, as a share of that of the data; None:
    recommended."""
    rescale: Annotated[float, Field(ge=0)] | None = None
    """Standard deviation of the random factor on the size of training sequences; None: recommended."""
    shift: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Largest random circular shift of training sequences, either way, as a share of their length: for sequences whose
    start is arbitrary, such as outlines and cycles; 0.5 lets them start anywhere."""
    crop: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Smallest share of a training sequence that a random window of it holds, which is stretched to the length of the
    whole; 1: no windows."""
    magnitude_warp: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of the smooth random curve around 1 that multiplies a training sequence's distance from the
    mean; 0: none."""
    channel_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability with which each channel of a training sequence is set to its mean, though never all of them; for two
    channels or more."""
    mixup: Annotated[float, Field(ge=0)] = 0.0
    """Parameter alpha of the Beta distribution by which pairs of training sequences and their labels are mixed, such as
    0.2; 0: none."""
    warm_up: Annotated[int, Field(ge=0)] | None = None
    """Largest number of steps by which the contexts that a forecast is trained on are extended at random, so that the
    model learns states that have seen a long stream; None: recommended."""
    patience: Annotated[
        Count | None, CommandOption("Stop after this many epochs without a better validation metric; default: never.")
    ] = None
    """Epochs without a better validation metric after which training stops; None: never."""
    patience_steps: Count | None = None
    """Optimizer steps without a better validation metric after which training stops, in place of patience."""
    certified: Annotated[
        bool | None,
        CommandOption(
            "Keep the layers provably contracting, non-expansive or bounded, or let all weights free; "
            "default: certified where something can be proved for all inputs, except of a few cells and with "
            "--preset paper.",
            metavar="<bool>",
            flags="--certified/--free",
        ),
    ] = None
    """Keep the weights in the region in which the cell's step is proved to contract, or, of cells of which no more can
    be kept, not to expand, or to stay bounded; see docs/background/stability.md. None: if the cell has such a region
    with these
    settings, for all inputs, the preset is practical, and the cell is not one that loses much by it."""
    certified_margin: Annotated[float, Field(ge=1e-5, le=0.5)] | None = None
    """Distance from 1 of the proved rate of a certified cell, at least, or of the forget gate of an LSTM, or of what a
    dominant diagonal leaves to its row; None: 0.001, and nothing where the cell is certified by construction."""
    skip_lr: Annotated[float, Field(ge=0)] | None = None
    """Learning rate of a forecast's linear skip, 0 to leave it as it was first fitted; None: a thirtieth of lr."""
    calibrate: bool | None = None
    """Set the temperature of probabilities on the validation split after training, or move a forecast's quantiles until
    they have the coverage that their levels say; None: if there are such a split and such answers."""
    temperature: Positive | None = None
    """Temperature of a classifier's probabilities, in place of one that is set by calibrate; a search with refit takes
    that of the sequences that its parts held out."""
    bptt_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps after which the gradient of the task 'predict-next' is cut off while the state goes on; 0: whole sequences.
    None: recommended for the dataset, else 150 for running text and 0 for sequences."""
    keep_epochs: bool = False
    """Keep the weights after each epoch in the run, as checkpoints/epoch-1 and so on, besides best and last."""
    plots: bool = True
    """Draw figures of the curves and predictions at the end of a run, which can take longer than training a small
    model, and store a sample of the test split, which a server's page opens with."""
    seed: Annotated[Seed, CommandOption("Seed of initial weights, order of samples and dropout; default: 0.")] = 0
    """Seed of initial weights, order of samples and dropout."""
    device: Annotated[DeviceName, CommandOption("Device to compute on; default: auto, a GPU if there is one.")] = "auto"
    """auto: a GPU if there is one."""
    threads: Annotated[Count, CommandOption("CPU threads; default: 1, fastest for small states.")] = 1
    """CPU threads of torch. One is fastest for states up to some hundred units, most of all where cores are shared, and
    gives the same numbers on every machine size."""
    recompute_every: Count | None = None
    """Steps of the model after which a state is kept for the backward pass, which computes those between again: less
    memory for long sequences, at the price of a second forward pass; None: all are kept."""

    @model_validator(mode="after")
    def _check(self) -> TrainingConfig:
        if self.epochs is not None and self.max_steps is not None:
            raise ValueError(
                f"{terms().key('training.epochs')} and {terms().key('training.max_steps')} exclude each other, got "
                f"{self.epochs} and {self.max_steps}."
            )
        if self.patience is not None and self.patience_steps is not None:
            raise ValueError(
                f"{terms().key('training.patience')} and training.patience_steps exclude each other, got "
                f"{self.patience} and {self.patience_steps}."
            )
        if self.momentum is not None and self.optimizer not in (None, "sgd", "rmsprop"):
            raise ValueError(
                f"training.momentum is only used by the optimizers 'sgd' and 'rmsprop', "
                f"got training.optimizer='{self.optimizer}'."
            )
        # With None, the check of the resolved settings decides.
        if self.certified_margin is not None and self.certified is False:
            raise ValueError(
                "training.certified_margin is only used by certified training of a cell with a certified region, got "
                f"training.certified_margin={self.certified_margin:g}."
            )
        if self.temperature is not None and self.calibrate:
            raise ValueError(
                "training.calibrate sets the temperature that training.temperature gives, got both; leave one of them "
                "out."
            )
        if self.refit and self.needs_validation:
            raise ValueError(
                f"training.refit leaves no validation split, which {terms().key('training.patience')}, "
                "training.patience_steps, training.calibrate and 'plateau' need."
            )
        # None is a schedule that is still to be recommended.
        for key, users in (("step_epochs", ("step",)), ("lr_decay", ("step", "plateau"))):
            if getattr(self, key) is not None and self.schedule not in (None, *users):
                raise ValueError(
                    f"training.{key} is only used by the schedule{'s'[: len(users) - 1]} "
                    f"{' and '.join(map(repr, users))}, got training.schedule='{self.schedule}'."
                )
        return self

    @property
    def needs_validation(self) -> bool:
        """True if a setting takes a validation split."""
        is_stopped_early = self.patience is not None or self.patience_steps is not None
        return is_stopped_early or bool(self.calibrate) or self.schedule == "plateau"


class Config(Section):
    """All settings of a run."""

    data: DataConfig
    task: TaskConfig = Field(default_factory=TaskConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)

    def as_stored(self) -> Config:
        """Return the settings as a run directory or a registry version holds them: resolved.

        Those written before ``model.time`` existed do not have it; times were not used then.
        """
        if self.model.time != "auto":
            return self
        return self.updated("model", time="ignore")

    def updated(self, section: str, **changes: Any) -> Config:
        """Return the settings with some of a section changed, which are not checked again."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=changes)})

    def tree(self) -> dict[str, Any]:
        """Return the settings as a tree of JSON types."""
        return self.model_dump(mode="json")

    def by_key(self) -> dict[str, Any]:
        """Return the settings by dotted key, as JSON types; an object without entries counts as a value."""
        return _flatten(self.tree())


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree}
    return {
        name: value
        for key, entry in tree.items()
        for name, value in _flatten(entry, f"{prefix}.{key}".strip(".")).items()
    }


def data_options(config: Config) -> LoadOptions:
    """Return the options of loading the data that settings name."""
    task = config.task
    return LoadOptions.unchecked(
        **config.data.model_dump(),
        task=task.name,
        horizon=task.horizon,
        context_length=task.context_length,
        season=task.season,
    )
