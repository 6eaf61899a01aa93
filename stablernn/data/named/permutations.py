"""Orders of pixels by name: the fixed permutations under which released code reads an image."""

from __future__ import annotations

import re

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Int64Array

#: What the papers' code calls on, in words of the general form.
PUBLISHED = {"urnn": "numpy-92916", "nnrnn": "numpy-1234"}

_SEEDED = re.compile(r"(numpy|torch)-(\d{1,9})")


def permutation(name: str, size: int) -> Int64Array:
    """The order of that name: step t reads the pixel at its t-th place.

    Args:
        name: ``urnn`` (also of scoRNN and expRNN), ``nnrnn``, or a generator with its seed: ``torch-12008`` (Lipschitz,
            noisy RNN, coRNN), ``torch-5544`` (UnICORNN, LEM), ``numpy-7``.
        size: Pixels of an image.

    Raises:
        ConfigError: If the name is none of these.
    """
    found = _SEEDED.fullmatch(PUBLISHED.get(name, name))
    if found is None:
        hint = errors.did_you_mean(name, (*PUBLISHED, "torch-12008", "torch-5544"))
        raise errors.ConfigError(
            f"permutation must be {', '.join(PUBLISHED)}, torch-SEED or numpy-SEED (such as torch-12008), "
            f"got '{name}'.{hint}"
        )
    generator, seed = found.groups()
    if generator == "numpy":
        return np.random.RandomState(int(seed)).permutation(size).astype(np.int64)
    import torch

    order: Int64Array = torch.randperm(size, generator=torch.Generator().manual_seed(int(seed))).numpy()
    return order
