"""A training step that takes more memory than there is ends with a sentence, and leaves the run as it was."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stablernn.errors import TrainingError
from stablernn.training.loop.trainer import enough_memory

LOW = """
import resource, sys
from pathlib import Path
from stablernn.errors import TrainingError
from stablernn.training import load_config, train
from stablernn.training.loop import trainer

step = trainer.Trainer._step

def limited(self, minibatch):
    # What the process has, and less than the states of one step of training take.
    taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (taken + (200 << 20), resource.RLIM_INFINITY))
    return step(self, minibatch)

trainer.Trainer._step = limited
config = load_config(overrides=[
    "data.source=digits", "model.cell=indrnn", "model.hidden_size=4096", "model.patch_size=1", "model.patch_stride=1",
    "training.batch_size=1000", "training.threads=1", "training.device=cpu", "training.max_steps=2",
    "training.plots=false",
])
try:
    train(config, Path(sys.argv[1]))
except TrainingError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit of memory is measured by /proc")
def test_a_step_without_enough_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOW, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"The memory of the device 'cpu' ran out in step 1, for a minibatch of 1000 sequences of 64 samples\. "
        r"training\.batch_size=500 takes about half of it; training\.recompute_every=8 keeps fewer states of long "
        r"sequences\.\n",
        done.stdout,
    )


def fail(error: RuntimeError) -> None:
    """Raise an error in the step of a minibatch of one sequence."""
    with enough_memory(torch.zeros(1, 9, 2), step=7):
        raise error


def test_memory_of_a_gpu() -> None:
    with pytest.raises(TrainingError, match=r"minibatch of 1 sequence of 9 samples\. training\.recompute_every=3 "):
        fail(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
