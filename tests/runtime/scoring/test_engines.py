"""The programs for Dask and Spark, in an environment of their own, give the bits of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from published_models import Published
from stablernn_runtime.scoring import Scorer

ROOT = Path(__file__).parents[3]
PACKAGES = ("dask[dataframe,distributed]==2026.8.0", "pyspark==4.3.0", "pandas", "pyarrow")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with both engines beside the packages of this one, which has none of them."""
    folder = tmp_path_factory.mktemp("engines")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    installed = subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"the engines cannot be installed: {installed.stderr.strip().splitlines()[-1]}")
    return python


@pytest.mark.parametrize("engine", ["dask", "spark"])
def test_engines_give_the_bits_of_one_process(
    engine: str, interpreter: Path, published: Published, tmp_path: Path
) -> None:
    noise = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for number in range(3):
        steps = noise.integers(1, 40, size=200)
        columns = {
            "unique_id": np.repeat([f"meter-{number}-{row}" for row in range(200)], steps),
            "ds": np.concatenate([np.arange(count) for count in steps]),
            "loudness": noise.normal(size=steps.sum()).astype(np.float32),
        }
        pl.DataFrame(columns).write_parquet(tmp_path / "in" / f"{number}.parquet")
    # Libraries of the new environment come first, those of this one fill the gaps.
    packages = [ROOT, *(ROOT / name for name in ("runtime", "registry"))]
    own = next(interpreter.parents[1].glob("lib/python*/site-packages"))
    shared = [path for path in sys.path if path.endswith("site-packages")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, [*packages, own, *shared])),
        "PYSPARK_PYTHON": str(interpreter),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    words = [str(published.registry.root), "animals@production", str(tmp_path / "in"), str(tmp_path / "out")]
    program = ROOT / "examples" / "engines" / f"score_with_{engine}.py"
    done = subprocess.run([interpreter, program, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = pl.read_parquet(tmp_path / "out" / "*.parquet").sort("id")
    scorer = Scorer.find("animals:1", registry=published.registry.root)
    alone = pl.concat(
        [scorer.score(pl.read_parquet(tmp_path / "in" / f"{number}.parquet")) for number in range(3)]
    ).sort("id")
    assert len(answers) == 600
    assert answers.equals(alone)
