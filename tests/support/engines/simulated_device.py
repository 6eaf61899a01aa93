"""A device that no machine lacks: its tensors are in host memory, and mix with tensors of the CPU as those of a GPU do.

Tensors on it say that their device is ``meta``. An operation on tensors of both devices fails, unless the one of the
CPU has no axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
CPU = torch.device("cpu")


class SimulatedTensor(Tensor):
    """A tensor on the simulated device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> SimulatedTensor:
        tensor: SimulatedTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
            requires_grad=inner.requires_grad,
        )
        tensor.inner = inner
        return tensor

    def tolist(self) -> Any:
        """Return the numbers, which makes the host wait for a device, but works on any."""
        return self.inner.tolist()

    def __getitem__(self, index: Any) -> Any:
        # PyTorch makes a tensor of a list below the operations that a class sees.
        parts = index if isinstance(index, tuple) else (index,)
        moved = tuple(SimulatedTensor(torch.tensor(part)) if isinstance(part, list) else part for part in parts)
        return super().__getitem__(moved)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(function, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(function, args, kwargs or {})


def _dispatch(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    simulated = [leaf for leaf in leaves if isinstance(leaf, SimulatedTensor)]
    requested = kwargs.get("device")
    on_device = bool(simulated) if requested is None else torch.device(requested) == DEVICE
    copies = function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    if simulated and not copies:
        foreign = [leaf for leaf in leaves if not isinstance(leaf, SimulatedTensor) and leaf.dim() > 0]
        if foreign:
            raise RuntimeError(f"{function} got a tensor of the CPU, {tuple(foreign[0].shape)}, and one of the device")
    if requested is not None:
        kwargs = {**kwargs, "device": CPU}
    inner_args, inner_kwargs = tree_map(_unwrap, (args, kwargs))
    result = function(*inner_args, **inner_kwargs)
    # Operations in place return one of their arguments.
    originals = {id(_unwrap(leaf)): leaf for leaf in leaves}

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or not on_device:
            return value
        return originals[id(value)] if id(value) in originals else SimulatedTensor(value)

    return tree_map(wrap, result)


def _unwrap(value: Any) -> Any:
    return value.inner if isinstance(value, SimulatedTensor) else value


class _NoGrad:
    """Stands in for ``torch.inference_mode``, under which some operations do not reach a tensor's class."""

    def __new__(cls, mode: bool = True) -> Any:
        return torch.no_grad() if mode else nullcontext()


@contextmanager
def simulated_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Give a device on which everything computes as on the CPU, and with which tensors of the CPU do not mix."""
    with monkeypatch.context() as patch, _Mode():
        patch.setattr(torch, "inference_mode", _NoGrad)
        yield DEVICE
