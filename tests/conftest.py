from __future__ import annotations

import pytest
import torch

# The suite's workers share the cores, and equality to the bit is promised on one thread.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
