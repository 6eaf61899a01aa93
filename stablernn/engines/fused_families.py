"""The steps of each family of :class:`StepForm`, forward and back over buffers, in place.

A pass works on lists with one tensor for each step, ``(rows, hidden)``, or ``(members, rows, hidden)`` where the
matrices are those of an ensemble: the states before and after the steps, the drives, and the activations that the
backward pass needs. The lengths of irregular steps are a list of ``(rows, 1)``,
that of regular ones is one number.

Going back, ``g`` is the gradient of the loss by the state after a step, and becomes that by the state before. In
families with a step size and regular steps it is multiplied by the step size once, before the first step back, so that
no step has to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from stablernn.cells._step_form import Family, StepForm

Views = Sequence[Tensor]
Lengths = float | Views

_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_relu_backward = torch.ops.aten.threshold_backward.grad_input


class FusedSteps:
    """The steps of one family, with its matrices.

    Args:
        form: The step; in an ensemble its matrices are ``(members, hidden, hidden)`` and its bias
            ``(members, 1, hidden)``.
    """

    stages: ClassVar[int] = 1
    """Evaluations of K h in a step."""
    arguments: ClassVar[int] = 1
    """Nonlinearities and gates in a step."""
    saved: ClassVar[int] = 1
    """Buffers that the backward pass needs besides the states: activations, then the states halfway."""

    def __init__(self, form: StepForm) -> None:
        self.form = form
        self.recurrent = form.recurrent
        self.linear = form.linear
        self.transposed = form.recurrent.mT
        self.transposed_linear = None if form.linear is None else form.linear.mT
        # Of one cell, or of the members of an ensemble.
        is_ensemble = form.recurrent.dim() == 3
        self.mm = torch.bmm if is_ensemble else torch.mm
        self.addmm = torch.baddbmm if is_ensemble else torch.addmm
        self.addmm_ = Tensor.baddbmm_ if is_ensemble else Tensor.addmm_
        self.activate = _activation(form)
        self.activate_backward = _activation_backward(form)

    def forward(self, states: Views, drives: Views, lengths: Lengths, saved: Sequence[Views]) -> None:
        """Write the states after the steps into ``states``, from the first of them."""
        raise NotImplementedError

    def backward(
        self,
        g: Tensor,
        lengths: Lengths,
        saved: Sequence[Views],
        arguments: Sequence[Views],
        velocities: Sequence[Views],
        outputs: Sequence[Tensor | None] | None,
    ) -> None:
        """Go back over the steps, and leave in ``g`` the gradient by the state before the first.

        Args:
            g: The gradient by the state after the last step; multiplied by the step size as the module says.
            lengths: As for :meth:`forward`.
            saved: As it left them; of a plain step the states after the steps.
            arguments: Buffers for the gradients by the arguments of nonlinearities and gates.
            velocities: Buffers for the gradients by A h, one of each stage; of any length where there is no A.
            outputs: The gradients by the states after the steps as outputs, None where there is none.
        """
        raise NotImplementedError


class PlainSteps(FusedSteps):
    """``h <- f(K h + d)``; the states are the activations."""

    saved = 0

    def forward(self, states: Views, drives: Views, lengths: Lengths, saved: Sequence[Views]) -> None:
        transposed, activate, addmm = self.transposed, self.activate, self.addmm
        for drive, old, new in zip(drives, states[:-1], states[1:], strict=True):
            addmm(drive, old, transposed, out=new)
            activate(new)

    def backward(
        self,
        g: Tensor,
        lengths: Lengths,
        saved: Sequence[Views],
        arguments: Sequence[Views],
        velocities: Sequence[Views],
        outputs: Sequence[Tensor | None] | None,
    ) -> None:
        (values,), (gradients,) = saved, arguments
        for index in range(len(values) - 1, -1, -1):
            if outputs is not None:
                add_output(g, outputs[index])
            self.activate_backward(g, values[index], gradients[index])
            self.mm(gradients[index], self.recurrent, out=g)


class ResidualSteps(FusedSteps):
    """``h <- h + e (A h + f(K h + d))``."""

    def forward(self, states: Views, drives: Views, lengths: Lengths, saved: Sequence[Views]) -> None:
        transposed, linear, activate, addmm = self.transposed, self.transposed_linear, self.activate, self.addmm
        (activations,) = saved
        for index, (drive, old, new, activation) in enumerate(
            zip(drives, states[:-1], states[1:], activations, strict=True)
        ):
            addmm(drive, old, transposed, out=activation)
            activate(activation)
            velocity = activation if linear is None else addmm(activation, old, linear)
            if isinstance(lengths, Sequence):
                torch.addcmul(old, velocity, lengths[index], out=new)
            else:
                torch.add(old, velocity, alpha=lengths, out=new)

    def backward(
        self,
        g: Tensor,
        lengths: Lengths,
        saved: Sequence[Views],
        arguments: Sequence[Views],
        velocities: Sequence[Views],
        outputs: Sequence[Tensor | None] | None,
    ) -> None:
        (activations,), (gradients,), (by_velocity,) = saved, arguments, velocities
        activate_backward, recurrent, linear, addmm_ = self.activate_backward, self.recurrent, self.linear, self.addmm_
        for index in range(len(activations) - 1, -1, -1):
            if outputs is not None:
                add_output(g, outputs[index], lengths)
            velocity, scale = g, 1.0
            if isinstance(lengths, Sequence):
                velocity = torch.mul(g, lengths[index], out=by_velocity[index if linear is not None else 0])
            elif linear is not None:
                # The product below changes g, and the gradient of A needs it as it is.
                velocity, scale = by_velocity[index].copy_(g), lengths
            else:
                scale = lengths
            argument = gradients[index]
            activate_backward(velocity, activations[index], argument)
            if linear is not None:
                addmm_(g, velocity, linear, alpha=scale)
            addmm_(g, argument, recurrent, alpha=scale)


class TwoStageSteps(FusedSteps):
    """``h <- h + e v(h + (e / 2) v(h))`` with ``v(h) = A h + f(K h + d)``."""

    stages = 2
    arguments = 2
    saved = 3

    def forward(self, states: Views, drives: Views, lengths: Lengths, saved: Sequence[Views]) -> None:
        first, second, middles = saved
        for index, drive in enumerate(drives):
            length = lengths[index] if isinstance(lengths, Sequence) else lengths
            old, middle = states[index], middles[index]
            self._stage(old, old, drive, length / 2, first[index], middle)
            self._stage(old, middle, drive, length, second[index], states[index + 1])

    def _stage(
        self, base: Tensor, state: Tensor, drive: Tensor, length: float | Tensor, activation: Tensor, out: Tensor
    ) -> None:
        self.addmm(drive, state, self.transposed, out=activation)
        self.activate(activation)
        linear = self.transposed_linear
        velocity = activation if linear is None else self.addmm(activation, state, linear)
        if isinstance(length, Tensor):
            torch.addcmul(base, velocity, length, out=out)
        else:
            torch.add(base, velocity, alpha=length, out=out)

    def backward(
        self,
        g: Tensor,
        lengths: Lengths,
        saved: Sequence[Views],
        arguments: Sequence[Views],
        velocities: Sequence[Views],
        outputs: Sequence[Tensor | None] | None,
    ) -> None:
        recurrent, linear, addmm_ = self.recurrent, self.linear, self.addmm_
        for index in range(len(saved[0]) - 1, -1, -1):
            if outputs is not None:
                add_output(g, outputs[index], lengths)
            length = lengths[index] if isinstance(lengths, Sequence) else lengths
            scale = 1.0 if isinstance(length, Tensor) else length
            first, second = (part[index] for part in arguments)
            first_velocity, velocity = (part[index if linear is not None else 0] for part in velocities)
            if isinstance(length, Tensor):
                torch.mul(g, length, out=velocity)
            else:
                velocity.copy_(g)
            self.activate_backward(velocity, saved[1][index], second)
            by_state = self.mm(second, recurrent)
            if linear is not None:
                addmm_(by_state, velocity, linear)
            # by_state is the gradient by the state halfway, and with the first stage that by the state before.
            torch.mul(by_state, length / 2, out=first_velocity)
            self.activate_backward(first_velocity, saved[0][index], first)
            addmm_(by_state, first, recurrent)
            if linear is not None:
                addmm_(by_state, first_velocity, linear)
            g.add_(by_state, alpha=scale)


class SharedGateSteps(FusedSteps):
    """``h <- h + e sigmoid(K h + d_z) f(K h + d_h)``."""

    arguments = 2
    saved = 2

    def forward(self, states: Views, drives: Views, lengths: Lengths, saved: Sequence[Views]) -> None:
        gates, candidates = saved
        for index, drive in enumerate(drives):
            gate, candidate = gates[index], candidates[index]
            gate_drive, candidate_drive = drive.chunk(2, dim=-1)
            recurrent = self.mm(states[index], self.transposed)
            torch.sigmoid(torch.add(recurrent, gate_drive, out=gate), out=gate)
            self.activate(torch.add(recurrent, candidate_drive, out=candidate))
            if isinstance(lengths, Sequence):
                torch.addcmul(states[index], gate * candidate, lengths[index], out=states[index + 1])
            else:
                torch.addcmul(states[index], gate, candidate, value=lengths, out=states[index + 1])

    def backward(
        self,
        g: Tensor,
        lengths: Lengths,
        saved: Sequence[Views],
        arguments: Sequence[Views],
        velocities: Sequence[Views],
        outputs: Sequence[Tensor | None] | None,
    ) -> None:
        for index in range(len(saved[0]) - 1, -1, -1):
            if outputs is not None:
                add_output(g, outputs[index], lengths)
            gate, candidate = (part[index] for part in saved)
            by_gate, by_candidate = (part[index] for part in arguments)
            velocity, scale = (g * lengths[index], 1.0) if isinstance(lengths, Sequence) else (g, lengths)
            _sigmoid_backward(velocity * candidate, gate, grad_input=by_gate)
            self.activate_backward(velocity * gate, candidate, by_candidate)
            self.addmm_(g, by_gate + by_candidate, self.recurrent, alpha=scale)


def add_output(g: Tensor, gradient: Tensor | None, lengths: Lengths = 1.0) -> None:
    """Add the gradient by an output to ``g``, times the step size where ``g`` is multiplied by it."""
    if gradient is not None:
        g.add_(gradient, alpha=1.0 if isinstance(lengths, Sequence) else lengths)


FAMILIES: dict[Family, type[FusedSteps]] = {
    "plain": PlainSteps,
    "residual": ResidualSteps,
    "two-stage": TwoStageSteps,
    "shared gate": SharedGateSteps,
}


def _activation(form: StepForm) -> Callable[[Tensor], object]:
    """Return the function that replaces its argument by the nonlinearity of it."""
    bias = form.bias
    if form.nonlinearity == "softshrink":
        assert bias is not None
        threshold = -bias
        return lambda z: z.sub_(z.clamp(bias, threshold))
    if form.nonlinearity == "modrelu":
        assert bias is not None
        return lambda z: z.copy_(torch.relu(z.abs() + bias).mul_(z.sign()))
    function = torch.tanh_ if form.nonlinearity == "tanh" else torch.relu_
    return function if bias is None else lambda z: function(z.add_(bias))


def _activation_backward(form: StepForm) -> Callable[[Tensor, Tensor, Tensor], object]:
    """Return the function that writes the gradient by the argument, from those by the value and the value."""
    if form.nonlinearity == "tanh":
        return lambda gradient, value, out: _tanh_backward(gradient, value, grad_input=out)
    if form.nonlinearity == "relu":
        return lambda gradient, value, out: _relu_backward(gradient, value, 0, grad_input=out)
    # modReLU has slope 1 where it is not 0.
    return lambda gradient, value, out: torch.mul(gradient, value != 0, out=out)
