from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

# The threads of NumPy's and SciPy's linear algebra wait for each other at full speed, which on shared cores takes many
# times what the work itself does. The number is read when NumPy is imported; what the tests start inherits it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch

if find_spec("triton") is not None and not torch.cuda.is_available():
    # Triton decides for its own functions when it is imported whether they run in the interpreter; importing a part of
    # torch may import it. The tests of kernels set the variable again.
    os.environ["TRITON_INTERPRET"] = "1"
    import_module("triton")
    del os.environ["TRITON_INTERPRET"]

from exports import keep_in

pytest_plugins = ["cpu_report", "published_models"]

# Where Python is told to write no bytecode, as in many containers, each process that the tests start would compile all
# that it imports, and each worker would rewrite the assertions of all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The suite's workers share the cores, and equality to the bit is promised on one thread.
torch.set_num_threads(1)

# torch gives some of its warnings only once in a process. The suite makes errors of warnings: which test fails must not
# depend on the tests that ran before it.
torch.set_warn_always(True)

# The garbage collector would look through torch, its exporter and thousands of collected tests again and again, which
# takes a sixth of the processor time of tests that export. `make test` prints that time.
gc.set_threshold(50_000, 20, 20)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _shared_exports(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    # Each worker has a folder of its own below that of the run.
    keep_in((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-exports")
