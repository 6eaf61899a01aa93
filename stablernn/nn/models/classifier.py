"""Classification: one label for a whole sequence."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from stablernn.nn.ensemble import Heads
from stablernn.nn.models._base import NetworkOptions, SequenceModel, States


class Classifier(SequenceModel):
    """One label for a sequence.

    Args:
        cell: A key of the catalog, see :func:`stablernn.list_cells`.
        input_size: Raw features per time step.
        num_classes: Classes, 2 or more.
        hidden_size: Length of each layer's state.
        head_dropout: Share of the head's input zeroed in training, 0 to 1.
        options: Those of :class:`SequenceModel`, from ``num_layers`` on.

    Shape:
        - input: ``(batch, time, input_size)`` in raw units, NaN where missing
        - lengths: ``(batch,)`` integers, or None when every step counts
        - dt: ``(batch, time)``, the time from the step before, for a model with ``max_dt``
        - output: logits, ``(batch, num_classes)``

    Raises:
        ConfigError: If an option is not among those listed.
        ValueError: If a size is out of range, or an input has another number of features.

    Examples:
        >>> model = Classifier("lipschitz", input_size=1, num_classes=10)
        >>> model(torch.zeros(2, 64, 1)).shape
        torch.Size([2, 10])
    """

    task = "classify"
    output_names = ("logits", "probabilities")
    takes_resampling = True
    temperature: Tensor
    """Divisor of the logits that calibrates the probabilities; 1 until it is fitted."""

    def __init__(
        self,
        cell: str,
        input_size: int,
        num_classes: int,
        hidden_size: int = 64,
        *,
        head_dropout: float = 0.0,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__(cell, input_size, hidden_size, **options)
        if num_classes < 2:
            raise ValueError(f"num_classes must be 2 or more, got {num_classes}.")
        self.num_classes = num_classes
        self.head = Heads(len(self.rnn), self.feature_size, num_classes, head_dropout)
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, x: Tensor, lengths: Tensor | None = None, dt: Tensor | None = None) -> Tensor:
        return self.emit(self.final_state(x, lengths, dt=dt))[0]

    def member_logits(self, state: States) -> Tensor:
        """Return each member's logits before calibration, ``(batch, members, num_classes)``, on which the loss acts."""
        logits: Tensor = self.head(self._features(state))
        return logits

    def emit(self, state: States, **covariates: Tensor) -> tuple[Tensor, ...]:
        logits = self.member_logits(state)
        if len(self.rnn) == 1:
            logits = logits[:, 0] / self.temperature
        else:
            # The members' mean probability, as logits; logsumexp subtracts the largest member, so that none underflows.
            log_probabilities = torch.log_softmax(logits, dim=-1)
            logits = (torch.logsumexp(log_probabilities, dim=1) - math.log(len(self.rnn))) / self.temperature
        return logits, torch.softmax(logits, dim=-1)

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self.output_names, (self.num_classes,))

    def output_loss(self, state: States, truth: Tensor, **covariates: Tensor) -> Tensor:
        logits = self.member_logits(state)
        # Every member has a loss of its own: (batch, members, classes) against the class of each sequence.
        classes = truth[:, None].expand(-1, logits.shape[1]).flatten()
        return nn.functional.cross_entropy(logits.flatten(0, 1), classes, reduction="sum")

    def config(self) -> dict[str, Any]:
        return super().config() | {"num_classes": self.num_classes, "head_dropout": self.head.dropout}
