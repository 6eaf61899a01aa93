"""The verdict on a finished run: whether its training diverged, and whether its model is of any use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stablernn.training.evaluation.trivial import Comparison
from stablernn.training.loop.base_trainer import BaseTrainer


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run.

    Attributes:
        diverged: True if the training loss ended far above where it began.
        warnings: Sentences for the user, without the failure.
        failure: Reason why the run counts as failed; None where it does not.
    """

    diverged: bool
    warnings: tuple[str, ...] = ()
    failure: str | None = None


def judge(
    trainer: BaseTrainer, comparison: Comparison | None, gate: Mapping[str, Any] | None, *, is_validated: bool
) -> Verdict:
    """Judge a run by its training loss and by the validation scores of the weights that it keeps.

    A run whose loss diverged fails if its weights are of no use: no better than the trivial answer (the same one for
    all sequences, the seasonal naive forecast), of a forecast also if only its linear skip was kept and nothing of the
    layers, or if there is no validation split. Weights of an epoch before the loss diverged can be good ones: then it
    is a warning. So is a model that is no better than the trivial answer without having diverged.

    Args:
        trainer: After its last step.
        comparison: The best weights and the trivial answer on the validation split; None where they cannot be compared.
        gate: Comparison of layers and linear skip; None where there is none.
        is_validated: True if there are scores on a validation split.
    """
    if not trainer.is_diverged:
        if comparison is None or not comparison.is_useless:
            return Verdict(diverged=False)
        sentence = f"The model is no better than {comparison.trivial} ({comparison})."
        return Verdict(diverged=False, warnings=(f"{sentence} Train it longer, or see docs/accuracy.md.",))
    # The loss diverged. Good weights may still be kept, from an epoch before that.
    position = trainer.position
    course = f"the training loss ended at {position.last_loss:.4g}, from {position.first_loss:.4g} at the first step"
    advice = f"Set {trainer.stabilizing_advice()}."
    # Nothing shows that the last weights, which are kept then, are of any use.
    if not is_validated:
        return Verdict(diverged=True, failure=f"Training diverged: {course}. {advice}")
    if comparison is not None and comparison.is_useless:
        reason = f"the best weights are no better than {comparison.trivial} ({comparison})"
        return Verdict(diverged=True, failure=f"Training diverged: {course}, and {reason}. {advice}")
    # A share of 0 was chosen on the validation windows: the layers have learned nothing that helps there.
    if gate is not None and gate["share"] == 0:
        reason = "nothing but the linear skip is left of the model"
        return Verdict(diverged=True, failure=f"Training diverged: {course}, and {reason}. {advice}")
    best = f"The weights of epoch {position.best_epoch} are kept, the best ones."
    return Verdict(diverged=True, warnings=(f"Training diverged: {course}. {best} {advice}",))
