"""The space of a search: ranges of the settings of every cell and of the options of each, where a user left them open.

The ranges of a cell's options are those that its paper searched or has values in, else ours around the published value.
Cells that are not listed are searched by the general settings alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stablernn.catalog import get_cell_facts
from stablernn.cells import cell_info
from stablernn.certificates.certificate import KINDS
from stablernn.certificates.projection import certified_kind
from stablernn.data.step_data import Data
from stablernn.data.types import ClassificationData, ForecastData
from stablernn.errors import ConfigError
from stablernn.training.resolve import described_cell
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import validate
from stablernn.training.tasks.classify import PATCHES

if TYPE_CHECKING:
    from optuna.trial import Trial


_DIGITS = 4
"""Significant digits of the values that are trained with: more would make command lines long and no model better."""


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; whole ones where both are integers.

    Attributes:
        low: Smallest number.
        high: Largest number.
        log: True to search on a logarithmic scale.
        step: Distance between two whole numbers.
    """

    low: float
    high: float
    log: bool = False
    step: int = 1

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def suggest(self, trial: Trial, name: str) -> float:
        """Return the value that the sampler suggests for a trial."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log, step=self.step)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def has(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        return not self.is_whole or (isinstance(value, int) and (value - self.low) % self.step == 0)

    def rounded(self, value: float) -> float:
        """Return a value as it is trained with."""
        return value if self.is_whole else min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)

    def document(self) -> dict[str, Any]:
        """Return the range as JSON types."""
        return {"low": self.low, "high": self.high, "log": self.log, **({"step": self.step} if self.step > 1 else {})}

    def __str__(self) -> str:
        scale = ", logarithmic" if self.log else ""
        steps = f", in steps of {self.step}" if self.step > 1 else ""
        return f"{self.low:g} to {self.high:g}{steps}{scale}"


@dataclass(frozen=True)
class Choices:
    """A few values without an order.

    Attributes:
        values: The values, numbers or names.
    """

    values: tuple[float | str, ...]

    def suggest(self, trial: Trial, name: str) -> float | str:
        """Return the value that the sampler suggests for a trial."""
        value: Any = trial.suggest_categorical(name, list(self.values))
        return self.values[self.values.index(value)]

    def has(self, value: object) -> bool:
        return value in self.values

    def rounded(self, value: Any) -> Any:
        """Return a value as it is trained with."""
        return value

    def document(self) -> dict[str, Any]:
        """Return the choices as JSON types."""
        return {"choices": list(self.values)}

    def __str__(self) -> str:
        return ", ".join(value if isinstance(value, str) else f"{value:g}" for value in self.values)


@dataclass(frozen=True)
class Parameter:
    """A parameter of the search.

    Attributes:
        name: Dotted key of the setting, ``patch_overlap``, or the name of a cell's option.
        values: Values that it can take.
        source: Source of the values.
        is_share: True if the value is a share of ``hidden_size``, of which the setting is the whole number nearest.
        recommended: Value of the first trial where the catalog of cells has none, or one of another kind.
    """

    name: str
    values: Range | Choices
    source: str
    is_share: bool = False
    recommended: float | None = None


CELL = "model.cell"
LAYERS = "model.num_layers"
HIDDEN_SIZE = "model.hidden_size"
DROPOUT = "model.dropout"
PATCH_STRIDE = "model.patch_stride"
PATCH_SIZE = "model.patch_size"
PATCH_OVERLAP = "patch_overlap"
CONTEXT_LENGTH = "task.context_length"

GENERAL: tuple[Parameter, ...] = (
    Parameter("training.lr", Range(1e-4, 1e-1, log=True), "ours: recommended rates lie between 0.001 and 0.03"),
    Parameter("training.weight_decay", Range(0.0, 0.3), "ours: recommended values are 0, 0.05 and 0.3"),
    Parameter(HIDDEN_SIZE, Choices((16, 32, 64, 128, 256)), "ours: the epochs of larger states are not certified"),
    Parameter(LAYERS, Range(1, 3), "ours"),
    Parameter(DROPOUT, Range(0.0, 0.5), "ours; with two layers or more"),
)
"""Parameters of every task."""

STRIDE_FACTORS = (0.5, 1, 2)
"""Patch strides of a classification, as factors of the recommended one."""
OVERLAPS = Choices((1, 2, 4, 8))
"""Patch sizes of a classification, in strides."""
CONTEXT_FACTORS = (1, 2, 4)
"""Context lengths of a forecast, as factors of the recommended one: whole seasons stay whole."""

_ANTISYMMETRIC = "Chang and others 2019: their grids"
_LIPSCHITZ = "Erichson and others 2021: what they searched"
_LIPSCHITZ_TABLES = "Erichson and others 2021: the values of their tables lie between"
_STEP_SIZE = Parameter("step_size", Range(0.01, 1.0, log=True), _ANTISYMMETRIC)
_DAMPING = Parameter("damping", Range(0.001, 1.0, log=True), _ANTISYMMETRIC)
_INIT_SCALE = Parameter("init_scale", Choices((0.0, 1.0, 2.0, 4.0, 8.0, 16.0)), _ANTISYMMETRIC)
_LIPSCHITZ_OPTIONS = (
    Parameter("step_size", Range(0.001, 1.0, log=True), _LIPSCHITZ),
    Parameter("skew_weight", Range(0.5, 1.0), _LIPSCHITZ_TABLES),
    Parameter("linear_damping", Range(0.001, 1.0, log=True), _LIPSCHITZ_TABLES),
    Parameter("recurrent_damping", Range(0.001, 1.0, log=True), _LIPSCHITZ_TABLES),
)
_NNRNN = "Kerg and others 2019: their settings lie between"
_KEPT_SHARE = "Kusupati and others 2018: their settings lie between"
_INPUT_SCALE = "Nguyen and others 2020: their settings lie between"

CELL_OPTIONS: dict[str, tuple[Parameter, ...]] = {
    "antisym_ablation": (_STEP_SIZE, _INIT_SCALE),
    "antisymmetric": (_STEP_SIZE, _DAMPING, _INIT_SCALE),
    "antisymmetric_g": (_STEP_SIZE, _DAMPING, _INIT_SCALE),
    "eunn": (
        Parameter(
            "capacity",
            Range(2, 16, step=2),
            "Jing and others 2017: from 2, up to the smallest hidden size that is searched",
            recommended=2,
        ),
    ),
    "fastgrnn": (
        Parameter("input_kept", Range(0.3, 1.0), _KEPT_SHARE),
        Parameter("recurrent_kept", Range(0.3, 1.0), _KEPT_SHARE),
    ),
    "incremental": (Parameter("inner_steps", Range(1, 5), "Kag and others 2020: 1, 2, 3 and 5"),),
    "kru": (Parameter("penalty_weight", Range(1e-3, 1e-1, log=True), "ours: a factor of ten around the default"),),
    "lipschitz": _LIPSCHITZ_OPTIONS,
    "lipschitz_rk2": _LIPSCHITZ_OPTIONS,
    "lvf": (Parameter("step_size", Range(0.01, 1.0, log=True), "ours: a factor of ten around the default"),),
    "lvf_mid": (Parameter("step_size", Range(0.1, 2.0, log=True), "ours: any step keeps norms"),),
    "momentum_lstm": (
        Parameter("momentum", Range(0.0, 0.9), _INPUT_SCALE),
        Parameter("input_scale", Range(0.1, 1.0), _INPUT_SCALE),
    ),
    "nais_net": (
        Parameter("margin", Range(0.001, 0.49, log=True), "Ciccone and others 2018: between 0 and 0.5, both excluded"),
    ),
    "neural_ode_rnn": (Parameter("step_size", Range(0.001, 1.0, log=True), _LIPSCHITZ),),
    "nnrnn": (
        Parameter("gain_penalty", Range(1e-6, 1.0, log=True), _NNRNN),
        Parameter("upper_penalty", Range(1e-8, 1e-4, log=True), _NNRNN),
    ),
    "noisy_rnn": (
        Parameter("additive_noise", Range(0.02, 0.05), "Lim and others 2021: their settings lie between"),
        Parameter("multiplicative_noise", Range(0.02, 0.05), "Lim and others 2021: their settings lie between"),
    ),
    "scornn": (
        Parameter(
            "negative_signs",
            Range(0.0, 0.5),
            "Helfrich and others 2018: none to half of the units",
            is_share=True,
            recommended=0.1,
        ),
    ),
    "soft_orth": (
        Parameter(
            "penalty_weight", Range(1e-5, 1.0, log=True), "ours: wide around the default and the published value"
        ),
    ),
    "spectral_rnn": (
        Parameter(
            "num_reflections",
            Range(0.05, 1.0),
            "Zhang and others 2018: up to all of the units",
            is_share=True,
            recommended=0.25,
        ),
        Parameter("margin", Range(0.001, 0.1, log=True), "ours: a factor of ten around the published value"),
    ),
    "sr_lstm": (
        Parameter("restart", Range(2, 40, log=True), _INPUT_SCALE),
        Parameter("input_scale", Range(0.1, 1.0), _INPUT_SCALE),
    ),
}
"""Options of the cells, by the keys of the catalog; the names of the parameters are those of the options."""


_OPTIONS = "model.cell_options"


@dataclass(frozen=True)
class Space:
    """Parameters of a search.

    Attributes:
        config: Settings of the user, which stay fixed.
        cells: Keys of the cells; the cell itself is a parameter where there are several.
        general: Parameters of all cells.
        options: Parameters of each cell, named ``cell.option``.
        single_layer: Cells that have one layer in every trial, since several prove less.
    """

    config: Config
    cells: tuple[str, ...]
    general: tuple[Parameter, ...]
    options: Mapping[str, tuple[Parameter, ...]]
    single_layer: frozenset[str]

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Return the parameters that the sampler suggests for a trial."""
        params: dict[str, Any] = {}
        cell = self.cells[0]
        if len(self.cells) > 1:
            cell = params[CELL] = trial.suggest_categorical(CELL, list(self.cells))
        for parameter in self._parameters(cell, params):
            params[parameter.name] = parameter.values.suggest(trial, parameter.name)
        return params

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that parameters stand for, by dotted key, with the cell."""
        cell = params.get(CELL, self.cells[0])
        settings: dict[str, Any] = {CELL: cell}
        for parameter in self._parameters(cell, params):
            # A trial whose process died while its parameters were drawn lacks some.
            if parameter.name not in params:
                continue
            value = parameter.values.rounded(params[parameter.name])
            if parameter.name == PATCH_OVERLAP:
                settings[PATCH_SIZE] = value * params[PATCH_STRIDE]
                continue
            if parameter.is_share:
                value = round(value * params.get(HIDDEN_SIZE, self.config.model.hidden_size))
            settings[parameter.name.replace(f"{cell}.", f"{_OPTIONS}.", 1)] = value
        return settings

    def run_config(self, settings: Mapping[str, Any]) -> Config:
        """Return the settings of a run: those of the user and those of a trial.

        Raises:
            ConfigError: If the two do not go together.
        """
        return combined(self.config, settings)

    def recommended(self, cell: str, resolved: Config) -> dict[str, Any]:
        """Return the parameters of the settings that are recommended for a cell; those outside of a range are left out.

        Args:
            cell: Key of the cell.
            resolved: Its settings without any parameter, resolved.
        """
        settings = resolved.by_key()
        facts = get_cell_facts(cell)["options"][resolved.model.preset]
        params: dict[str, Any] = {CELL: cell} if len(self.cells) > 1 else {}
        for parameter in self._parameters(cell, params):
            option = parameter.name.removeprefix(f"{cell}.")
            if parameter.name == PATCH_OVERLAP:
                overlap, remainder = divmod(settings[PATCH_SIZE], settings[PATCH_STRIDE])
                value = None if remainder else overlap
            elif option != parameter.name:
                value = parameter.recommended if facts.get(option) is None else facts[option]
            else:
                value = settings[parameter.name]
            if parameter.values.has(value):
                params[parameter.name] = value
        return params

    def document(self) -> dict[str, Any]:
        """Return the space as JSON types."""
        every = [*self.general, *(parameter for cell in self.cells for parameter in self.options[cell])]
        return {parameter.name: parameter.values.document() for parameter in every}

    def _parameters(self, cell: str, params: Mapping[str, Any]) -> Iterator[Parameter]:
        """Yield the parameters of a cell in their order.

        Args:
            cell: Key of the cell.
            params: Values of the parameters before; whether there is dropout depends on the number of layers.
        """
        for parameter in (*self.general, *self.options[cell]):
            if parameter.name == LAYERS and cell in self.single_layer:
                continue
            if parameter.name == DROPOUT and params.get(LAYERS, self.config.model.num_layers) == 1:
                continue
            yield parameter


def build_space(config: Config, cells: Sequence[str], data: Data, require: str) -> Space:
    """Return the parameters that a user left open.

    Args:
        config: Settings of the user.
        cells: Keys of the cells.
        data: The data, with the recommended context length.
        require: Weakest kind of certificate that is accepted.

    Raises:
        ConfigError: If no parameter is left open, or a cell has none.
    """
    if solved := [cell for cell in cells if cell_info(cell).cell.is_fixed]:
        raise ConfigError(
            f"Nothing is searched for the cell '{solved[0]}', whose head is solved for; use `stablernn train`."
        )
    fixed = _keys_in_use(config)
    if LAYERS in fixed and config.model.num_layers == 1:
        fixed.add(DROPOUT)
    general = [parameter for parameter in (*GENERAL, *_data_parameters(config, data)) if parameter.name not in fixed]
    options = {
        cell: tuple(
            replace(parameter, name=f"{cell}.{parameter.name}")
            for parameter in CELL_OPTIONS.get(cell, ())
            if f"{_OPTIONS}.{parameter.name}" not in fixed
        )
        for cell in cells
    }
    if len(cells) == 1 and not general and not options[cells[0]]:
        raise ConfigError("Every setting that could be searched is fixed. Leave one open, or use `stablernn train`.")
    single = frozenset(cell for cell in cells if _proves_one_layer(config, cell, require))
    return Space(config, tuple(cells), tuple(general), options, single)


def _keys_in_use(config: Config) -> set[str]:
    tree = config.model_dump(mode="json", exclude_unset=True)
    # A null resets a key, which leaves it open.
    keys = {
        f"{section}.{key}" for section, values in tree.items() for key, value in values.items() if value is not None
    }
    return keys | {f"{_OPTIONS}.{option}" for option in config.model.cell_options}


def _data_parameters(config: Config, data: Data) -> list[Parameter]:
    """Return the parameters whose values depend on the data."""
    if isinstance(data, ForecastData) and config.task.context_length is None:
        lengths = tuple(
            length
            for length in (factor * data.context_length for factor in CONTEXT_FACTORS)
            if length == data.context_length or _has_windows(data, length)
        )
        return [Parameter(CONTEXT_LENGTH, Choices(lengths), "ours: one, two and four times the recommended one")]
    model = config.model
    # The preset 'paper' has no patches. A size or a stride that is fixed leaves the other to the recommendation, and
    # convolutions need patches as long as their receptive field.
    is_fixed = model.patch_size or model.patch_stride or model.conv_layers
    if not isinstance(data, ClassificationData) or model.preset == "paper" or is_fixed:
        return []
    stride = max(1, round((model.resample_steps or data.longest_input) / PATCHES))
    strides = {max(1, round(factor * stride)) for factor in STRIDE_FACTORS}
    # No patch is longer than the longest sequence, but for the recommended stride.
    longest = max(value for value in OVERLAPS.values if isinstance(value, int))
    strides = {value for value in strides if value == stride or longest * value <= data.longest_input}
    return [
        Parameter(PATCH_STRIDE, Choices(tuple(sorted(strides))), "ours: half of the recommended one to twice"),
        Parameter(PATCH_OVERLAP, OVERLAPS, "ours: up to twice the recommended one"),
    ]


def _has_windows(data: ForecastData, context_length: int) -> bool:
    longer = replace(data, context_length=context_length)
    return all(len(longer.windows(split)) for split in ("train", "validation"))


def _proves_one_layer(config: Config, cell: str, require: str) -> bool:
    """Return True if several layers of a cell prove less than is asked for: non-expansive ones may expand together."""
    is_asked_for = bool(config.training.certified) or KINDS.index(require) <= KINDS.index("non-expansive")
    try:
        return is_asked_for and certified_kind(described_cell(combined(config, {CELL: cell}).model)) == "non-expansive"
    except ConfigError:
        # A cell without a certified region.
        return False


def combined(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return settings with others, by dotted key, that win.

    Raises:
        ConfigError: If the two do not go together.
    """
    tree = config.model_dump(mode="json", exclude_unset=True)
    for key, value in settings.items():
        *path, name = key.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[name] = value
    return validate(tree)
