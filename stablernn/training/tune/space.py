"""The space of one search: the parameters that a user left open, for their data and cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stablernn.catalog import get_cell_facts
from stablernn.certificates.certificate import KINDS
from stablernn.certificates.projection import certified_kind
from stablernn.data.step_data import Data
from stablernn.data.types import ClassificationData, ForecastData
from stablernn.errors import ConfigError
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import validate
from stablernn.training.settings.resolve import described_cell
from stablernn.training.tasks.classify import PATCHES
from stablernn.training.tune.parameters import Choices, Parameter
from stablernn.training.tune.spaces import (
    CELL,
    CELL_OPTIONS,
    CONTEXT_FACTORS,
    CONTEXT_LENGTH,
    DROPOUT,
    GENERAL,
    HIDDEN_SIZE,
    LAYERS,
    OVERLAPS,
    PATCH_OVERLAP,
    PATCH_SIZE,
    PATCH_STRIDE,
    STRIDE_FACTORS,
)

if TYPE_CHECKING:
    from optuna.trial import Trial

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
        ConfigError: If no parameter is left open.
    """
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
