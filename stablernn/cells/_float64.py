"""Weights as float64 numpy arrays, in which :mod:`stablernn.bounds` computes."""

from __future__ import annotations

from torch import Tensor

from stablernn.bounds.linalg import Matrix


def float64(tensor: Tensor) -> Matrix:
    """Return the values of a tensor exactly, as a float64 array on the CPU."""
    return tensor.detach().cpu().double().numpy()
