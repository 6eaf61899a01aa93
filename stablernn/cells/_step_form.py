"""The step of a cell as data, for engines that run it by other means than the cell's own code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from stablernn.parametrizations import modrelu

Family = Literal["plain", "residual", "two-stage", "shared gate"]
Nonlinearity = Literal["tanh", "relu", "modrelu", "softshrink"]


@dataclass(frozen=True, eq=False)
class StepForm:
    """A step of one of four families, with the state h, the drive d, the matrices K and A, and a nonlinearity f.

    =============  =============================================================================================
    family         step
    =============  =============================================================================================
    plain          ``h <- f(K h + d)``
    residual       ``h <- h + e (A h + f(K h + d))``
    two-stage      ``h <- h + e v(h + (e / 2) v(h))`` with ``v(h) = A h + f(K h + d)``
    shared gate    ``h <- h + e sigmoid(K h + d_z) f(K h + d_h)``, where d is d_z followed by d_h
    =============  =============================================================================================

    Attributes:
        family: The family; its name is that of the catalog.
        recurrent: K, ``(hidden, hidden)``.
        linear: A, ``(hidden, hidden)``; None for 0.
        step_size: e, which a plain step does not have; an irregular step has ``step_size * dt``.
        nonlinearity: f. ``modrelu`` is ``sign(z) max(|z| + bias, 0)``, ``softshrink`` the same with
            a bias of at most 0; the others take ``z + bias``.
        bias: ``(hidden,)``; None for 0, or where the drive contains it.
    """

    family: Family
    recurrent: Tensor
    linear: Tensor | None = None
    step_size: float = 1.0
    nonlinearity: Nonlinearity = "tanh"
    bias: Tensor | None = None

    @classmethod
    def stack(cls, forms: Sequence[StepForm]) -> StepForm:
        """Return the step of several cells at once, the members of an ensemble.

        Its states and drives are ``(members, batch, d)``, its matrices ``(members, hidden, hidden)``, its bias is
        ``(members, 1, hidden)``.

        Args:
            forms: One of each member; they differ in their tensors only.
        """
        linear = [form.linear for form in forms if form.linear is not None]
        bias = [form.bias for form in forms if form.bias is not None]
        return replace(
            forms[0],
            recurrent=torch.stack([form.recurrent for form in forms]),
            linear=torch.stack(linear) if linear else None,
            bias=torch.stack(bias)[:, None] if bias else None,
        )

    def step(self, h: Tensor, drive: Tensor, dt: Tensor | None = None) -> Tensor:
        """Return the next state: the definition that engines and tests compare with.

        Args:
            h: ``(batch, hidden)``.
            drive: ``(batch, hidden)``, with a shared gate ``(batch, 2 hidden)``.
            dt: ``(batch, 1)``; None for a regular step. A plain step takes none.
        """
        if self.family == "plain":
            return self._activate(h @ self.recurrent.mT + drive)
        length = self.step_size if dt is None else self.step_size * dt
        if self.family == "shared gate":
            recurrent = h @ self.recurrent.mT
            gate, candidate = drive.chunk(2, dim=-1)
            return h + length * torch.sigmoid(recurrent + gate) * self._activate(recurrent + candidate)
        if self.family == "two-stage":
            return h + length * self._velocity(h + (length / 2) * self._velocity(h, drive), drive)
        return h + length * self._velocity(h, drive)

    def _velocity(self, h: Tensor, drive: Tensor) -> Tensor:
        velocity = self._activate(h @ self.recurrent.mT + drive)
        return velocity if self.linear is None else velocity + h @ self.linear.mT

    def _activate(self, z: Tensor) -> Tensor:
        if self.nonlinearity in ("modrelu", "softshrink"):
            assert self.bias is not None
            return modrelu(z, self.bias)
        shifted = z if self.bias is None else z + self.bias
        return torch.tanh(shifted) if self.nonlinearity == "tanh" else torch.relu(shifted)
