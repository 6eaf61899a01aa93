"""Settings of a fit in closed form: refusal of those that only a training by gradients uses."""

from __future__ import annotations

from stablernn.cells import StableCell
from stablernn.data.step_data import Data, StepData
from stablernn.errors import ConfigError
from stablernn.terms import terms
from stablernn.training.settings.config import Config, ModelConfig, TrainingConfig
from stablernn.training.settings.defaults import TrainingDefaults

CLOSED_FORM = "closed-form"
"""Value of ``training.method``."""

MOST_OUTPUTS = 256
"""Outputs at every step that are solved for at most: a large vocabulary takes longer than training by gradients."""
_USED = frozenset(
    {"method", "refit", "certified", "certified_margin", "calibrate", "plots", "seed", "device", "threads"}
)
"""Settings of the section ``training`` that a fit in closed form uses."""
_MODEL_KEYS = ("members", "dropout", "head_dropout")
"""Settings of the section ``model`` that act in training by gradients alone, or on several networks."""


def refuse_gradient_settings(config: Config, cell: StableCell, data: Data) -> None:
    """Refuse settings, cells and data that do not go with a fit in closed form.

    Args:
        config: The settings, before they are resolved, with ``training.method=closed-form``.
        cell: The cell that they describe.
        data: Data to train on.

    Raises:
        ConfigError: If one is set that would have no effect, the cell changes itself over the steps of a training, or
            there are too many outputs to solve for.
    """
    fields = {"training": TrainingConfig.model_fields, "model": ModelConfig.model_fields}
    unused = [("training", key) for key in fields["training"] if key not in _USED]
    for section, key in [*unused, *(("model", key) for key in _MODEL_KEYS)]:
        value = getattr(getattr(config, section), key)
        # 0 and False are off: resolved settings say so.
        if value not in (None, 0, fields[section][key].default):
            raise ConfigError(
                f"{section}.{key} is only used by training.method=gradient, got {value!r} with "
                f"training.method={CLOSED_FORM}, which draws the recurrent weights and solves for the head of one "
                "network; leave one of them out."
            )
    if cell.plans_ahead:
        raise ConfigError(
            f"The cell '{cell.key}' changes its weights over the steps of a training, and training.method="
            f"{CLOSED_FORM} has none; take a cell such as lru, or training.method=gradient."
        )
    if isinstance(data, StepData) and len(data.outputs) > MOST_OUTPUTS:
        raise ConfigError(
            f"training.method={CLOSED_FORM} solves for at most {MOST_OUTPUTS} outputs at every step, and "
            f"{terms().file(data.name)} has {len(data.outputs):,}; take training.method=gradient."
        )


def closed_form_training(training: TrainingConfig, defaults: TrainingDefaults) -> TrainingConfig:
    """Return the resolved section ``training`` of a fit in closed form.

    Args:
        training: The settings, before they are resolved.
        defaults: Recommendations for the same settings.
    """
    # All other recommendations are for gradients, and stay None: a run stores what it used.
    used = {key: getattr(defaults, key) for key in ("calibrate", "certified_margin")}
    return training.model_copy(update={key: value for key, value in used.items() if getattr(training, key) is None})
