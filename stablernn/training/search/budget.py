"""The budget of a search with the training that follows it: a time, or a number of optimizer steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stablernn.errors import ConfigError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|steps)")


@dataclass(frozen=True)
class Budget:
    """A limit on a search together with the training after it; one of both attributes is set.

    Attributes:
        seconds: Processor seconds of each core that the command is given, which an idle machine takes on the clock.
        steps: Optimizer steps of all models. The same number gives the same choice on every machine.
    """

    seconds: float | None = 120.0
    steps: int | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return the budget that a text such as ``90s``, ``2m``, ``1.5h`` or ``20000steps`` states.

        Raises:
            ConfigError: If the text states none, or one of nothing.
        """
        match = _PATTERN.fullmatch(text.strip())
        if match is None or float(match[1]) == 0:
            raise ConfigError(
                f"A budget is a time or a number of optimizer steps above 0, such as 90s, 2m, 1h or 20000steps, got "
                f"'{text}'."
            )
        if match[2] != "steps":
            return cls(seconds=float(match[1]) * _UNITS[match[2]])
        if "." in match[1]:
            raise ConfigError(f"A number of steps is whole, got '{text}'.")
        return cls(seconds=None, steps=int(match[1]))

    def __str__(self) -> str:
        if self.steps is not None:
            return f"{self.steps:,} steps"
        assert self.seconds is not None
        return f"{self.seconds:g} s" if self.seconds < 120 else f"{self.seconds / 60:g} min"
