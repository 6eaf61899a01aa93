"""Robustness reports as the registry stores them: the measured weights and the main figures."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from stablernn_registry.certificates import format_lower

ROBUSTNESS = "robustness.json"
EXAMPLE = "example.json"
"""A sample that the model was not fitted on, as a request, with its true answer."""
"""Name of the report file, in a version and in a record."""
ROBUSTNESS_PLOTS = ("plots/robustness.png", "plots/noise.png")
"""Names of its plots."""

_ATTACK_NAMES = {"pgd": "PGD", "deepfool": "DeepFool"}


class _FrozenModel(BaseModel):
    # Reports have more fields than are read here, and newer ones may have further fields.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, defer_build=True)


class Attack(_FrozenModel):
    """Accuracy under one attack.

    Attributes:
        name: Name such as ``pgd``.
        norm: ``linf`` or ``l2``.
        budgets: Maximum sizes of the perturbation.
        accuracy: Accuracy at each budget.
    """

    name: str
    norm: str
    budgets: list[float]
    accuracy: list[float]


class Certified(_FrozenModel):
    """The radii within which no attack can succeed.

    Attributes:
        median_radius: Median radius in the 2-norm over the correctly classified sequences; None if none is certified.
        reason: Reason why none is certified, or None.
    """

    median_radius: float | None
    reason: str | None


class RobustnessReport(_FrozenModel):
    """The main figures of a ``robustness.json``; docs/reference/reports.md has all of them.

    Attributes:
        weights: ``sha256:`` and the hash of the measured ``weights.safetensors``; None if the report has no hash.
        data: Name of the data that it was measured on.
        split: Split of that data.
        sequences: Number of measured sequences.
        accuracy: Accuracy without an attack.
        attacks: Accuracy under each attack.
        certified: Certified radii.
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
        """Parse a report, or return None if the bytes are not one."""
        try:
            return cls.model_validate_json(content)
        except ValidationError:
            return None

    @property
    def sample(self) -> str:
        """Description of the measured sequences."""
        return f"{self.sequences} sequences of {self.data}, {self.split}"

    def figures(self) -> dict[str, str]:
        """Return the figures by name: accuracy, accuracy under each attack at each budget, median certified radius."""
        figures = {"accuracy": f"{self.accuracy:.4g}"}
        for attack in self.attacks:
            points = zip(attack.budgets, attack.accuracy, strict=False)
            label = f"accuracy under {_ATTACK_NAMES.get(attack.name, attack.name)} ({attack.norm})"
            figures[label] = ", ".join(f"{accuracy:.4g} at {budget:g}" for budget, accuracy in points)
        radius = self.certified.median_radius
        reason = self.certified.reason or "no sequence is classified correctly"
        figures["median certified radius"] = (
            f"none: {reason.rstrip('.')}" if radius is None else f"{format_lower(radius, 4)} (l2)"
        )
        return figures
