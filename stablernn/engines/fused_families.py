"""The steps of each family of :class:`StepForm`, forward and back over buffers, in place.

A pass gets buffers of consecutive steps, ``(steps, rows, hidden)``, or ``(steps, members, rows, hidden)`` where the
matrices are those of an ensemble: the states before and after the steps, the drives, and the activations that the
backward pass needs. The steps here work on views of one step each; an engine with kernels for whole buffers overrides
``forward`` and ``backward``.

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
"""The length of regular steps, or that of each step, ``(rows, 1)``."""

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

    def forward(
        self, states: Tensor, drives: Tensor, lengths: float | Tensor, saved: Sequence[Tensor], substeps: int
    ) -> None:
        """Write the states after the steps into ``states``, from the first of them.

        Args:
            states: ``(steps + 1, rows, hidden)``, of which the first is read; or two slots that are used in turn.
            drives: ``(time, rows, d)``, contiguous; there are ``time * substeps`` steps.
            lengths: The length of regular steps, or those of the sub-steps of each time step, ``(time, rows, 1)``.
            saved: Buffers ``(steps, rows, hidden)`` for what the backward pass needs, or one slot each.
            substeps: Steps of a time step.
        """
        count = len(drives) * substeps
        self.forward_steps(
            slots(states, count + 1),
            repeated(drives, substeps),
            repeated(lengths, substeps) if isinstance(lengths, Tensor) else lengths,
            [slots(buffer, count) for buffer in saved],
        )

    def backward(
        self,
        g: Tensor,
        lengths: float | Tensor,
        saved: Sequence[Tensor],
        arguments: Sequence[Tensor],
        velocities: Sequence[Tensor],
        outputs: Tensor | None,
        substeps: int,
    ) -> None:
        """Go back over the steps, and leave in ``g`` the gradient by the state before the first.

        Args:
            g: The gradient by the state after the last step; multiplied by the step size as the module says.
            lengths: As for :meth:`forward`.
            saved: As it left them; of a plain step the states after the steps.
            arguments: Buffers for the gradients by the arguments of nonlinearities and gates; they may be those of the
                saved activations.
            velocities: Buffers for the gradients by A h, one of each stage; of any length where there is no A.
            outputs: The gradients by the states after the time steps as outputs, ``(time, rows, hidden)``.
            substeps: Steps of a time step.
        """
        self.backward_steps(
            g,
            repeated(lengths, substeps) if isinstance(lengths, Tensor) else lengths,
            [buffer.unbind() for buffer in saved],
            [buffer.unbind() for buffer in arguments],
            [buffer.unbind() for buffer in velocities],
            None if outputs is None else output_gradients(outputs, substeps),
        )

    def add_gradient(self, total: Tensor, gradient: Tensor, states: Tensor) -> None:
        """Add the products of gradients with states to the gradient of a matrix.

        Args:
            total: ``(hidden, hidden)``, or that of each member, contiguous.
            gradient: By the products, ``(steps, rows, hidden)`` or ``(steps, members, rows, hidden)``.
            states: The states, of the same shape.
        """
        self.addmm_(total, _rows_of(gradient).mT, _rows_of(states))

    def forward_steps(self, states: Views, drives: Views, lengths: Lengths, saved: Sequence[Views]) -> None:
        """Do what :meth:`forward` says, on views of each step."""
        raise NotImplementedError

    def backward_steps(
        self,
        g: Tensor,
        lengths: Lengths,
        saved: Sequence[Views],
        arguments: Sequence[Views],
        velocities: Sequence[Views],
        outputs: Sequence[Tensor | None] | None,
    ) -> None:
        """Do what :meth:`backward` says, on views of each step."""
        raise NotImplementedError


class PlainSteps(FusedSteps):
    """``h <- f(K h + d)``; the states are the activations."""

    saved = 0

    def forward_steps(self, states: Views, drives: Views, lengths: Lengths, saved: Sequence[Views]) -> None:
        transposed, activate, addmm = self.transposed, self.activate, self.addmm
        for drive, old, new in zip(drives, states[:-1], states[1:], strict=True):
            addmm(drive, old, transposed, out=new)
            activate(new)

    def backward_steps(
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

    def forward_steps(self, states: Views, drives: Views, lengths: Lengths, saved: Sequence[Views]) -> None:
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

    def backward_steps(
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

    def forward_steps(self, states: Views, drives: Views, lengths: Lengths, saved: Sequence[Views]) -> None:
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

    def backward_steps(
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

    def forward_steps(self, states: Views, drives: Views, lengths: Lengths, saved: Sequence[Views]) -> None:
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

    def backward_steps(
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
            # The gradients may take the place of gate and candidate.
            by_value = velocity * gate
            _sigmoid_backward(velocity * candidate, gate, grad_input=by_gate)
            self.activate_backward(by_value, candidate, by_candidate)
            self.addmm_(g, by_gate + by_candidate, self.recurrent, alpha=scale)


def _rows_of(buffer: Tensor) -> Tensor:
    """Return the rows of all steps, ``(steps * batch, d)`` or ``(members, steps * batch, d)``."""
    return buffer.reshape(-1, buffer.shape[-1]) if buffer.dim() == 3 else buffer.movedim(1, 0).flatten(1, 2)


def slots(buffer: Tensor, count: int) -> Views:
    """Return a view of each step; a buffer with fewer slots is used in turn."""
    views = buffer.unbind()
    return views if len(views) == count else [views[index % len(views)] for index in range(count)]


def repeated(times: Tensor, substeps: int) -> Views:
    """Return a view of what each step reads of the tensor of the time steps."""
    views = times.unbind()
    return views if substeps == 1 else [view for view in views for _ in range(substeps)]


def output_gradients(outputs: Tensor, substeps: int) -> list[Tensor | None]:
    """Return the gradient by the output of each step; only the last of a time step has one."""
    times = outputs.unbind()
    return [times[index // substeps] if (index + 1) % substeps == 0 else None for index in range(len(times) * substeps)]


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
