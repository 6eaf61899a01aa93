"""Orders of pixels by name: the fixed permutations in which released code reads an image."""

from __future__ import annotations

import re

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Int64Array

#: Permutations of the code of papers, as generator and seed.
PUBLISHED = {"urnn": "numpy-92916", "nnrnn": "numpy-1234"}

_SEEDED = re.compile(r"(numpy|torch)-(\d{1,9})")


def permutation(name: str, size: int) -> Int64Array:
    """Return a permutation by name: step t reads the pixel whose index is its t-th element.

    Args:
        name: ``urnn`` (also used by scoRNN and expRNN), ``nnrnn``, or a generator with its seed: ``torch-12008``
            (Lipschitz, noisy RNN, coRNN), ``torch-5544`` (UnICORNN, LEM), ``numpy-7``.
        size: Number of pixels of an image.

    Raises:
        ConfigError: If the name is unknown.
    """
    match = _SEEDED.fullmatch(PUBLISHED.get(name, name))
    if match is None:
        hint = errors.did_you_mean(name, (*PUBLISHED, "torch-12008", "torch-5544"))
        raise errors.ConfigError(
            f"permutation must be {', '.join(PUBLISHED)}, torch-SEED or numpy-SEED (such as torch-12008), "
            f"got '{name}'.{hint}"
        )
    generator, seed = match.groups()
    if generator == "numpy":
        return np.random.RandomState(int(seed)).permutation(size).astype(np.int64)
    # Imported here, because stablernn.data must not load torch unless it is needed.
    import torch

    order: Int64Array = torch.randperm(size, generator=torch.Generator().manual_seed(int(seed))).numpy()
    return order
