"""Parameters of a search: a name, the values it can take, and the source of its range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

# Optuna is optional, and the documentation is written without it.
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
