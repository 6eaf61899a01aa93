"""Robustness reports as the registry keeps them: which weights they are of, and what they say in a few lines."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

ROBUSTNESS = "robustness.json"
"""Name of the file, in a version and in a record."""
ROBUSTNESS_PLOTS = ("plots/robustness.png", "plots/noise.png")
"""Names of its pictures."""

_WORDS = {"pgd": "PGD", "deepfool": "DeepFool"}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Attack(_Part):
    """Accuracy under one attack.

    Attributes:
        name: Such as ``pgd``.
        norm: ``linf`` or ``l2``.
        budgets: Sizes of the change that it may make.
        accuracy: At each of them.
    """

    name: str
    norm: str
    budgets: list[float]
    accuracy: list[float]


class Certified(_Part):
    """What no attack can reach.

    Attributes:
        median_radius: In the 2-norm, of the sequences that are classified rightly; None where nothing is certified.
        reason: Why nothing is.
    """

    median_radius: float | None
    reason: str | None


class RobustnessReport(_Part):
    """The main figures of a ``robustness.json``; docs/robustness.md has all of them.

    Attributes:
        weights: ``sha256:`` and the hash of the ``weights.safetensors`` that was measured; None where it is not said.
        data: The data it was measured on.
        split: Likewise.
        sequences: How many were measured.
        accuracy: When they are not attacked.
        attacks: What attacks make of it.
        certified: What none can.
    """

    weights: str | None = None
    data: str
    split: str
    sequences: int
    accuracy: float
    attacks: list[Attack]
    certified: Certified

    @classmethod
    def parse(cls, content: bytes) -> Self | None:
        """Read a report; None where the bytes are not one."""
        try:
            return cls.model_validate_json(content)
        except ValidationError:
            return None

    @property
    def sample(self) -> str:
        """What was measured, in words."""
        return f"{self.sequences} sequences of {self.data}, {self.split}"

    def figures(self) -> dict[str, str]:
        """Accuracy, accuracy under each attack at each budget, median certified radius; by what they are called."""
        found = {"accuracy": f"{self.accuracy:.4g}"}
        for attack in self.attacks:
            reached = zip(attack.budgets, attack.accuracy, strict=False)
            what = f"accuracy under {_WORDS.get(attack.name, attack.name)} ({attack.norm})"
            found[what] = ", ".join(f"{accuracy:.4g} at {budget:g}" for budget, accuracy in reached)
        radius = self.certified.median_radius
        none = self.certified.reason or "no sequence is classified correctly"
        found["median certified radius"] = f"none: {none.rstrip('.')}" if radius is None else f"{radius:.4g} (l2)"
        return found
