"""Score a folder of Parquet files with Dask: a row for each step, whole sequences in each file.

    pip install . "dask[dataframe,distributed]"  # in the checkout of stablernn
    python score_with_dask.py REGISTRY MODEL INPUT OUTPUT

Each file is a partition, and is answered by one process, which opens the version once.
"""

import sys

import dask.dataframe as dd
import pandas as pd
from dask.distributed import Client

from stablernn_runtime.scoring import Scorer


def score(frame: pd.DataFrame, scorer: Scorer) -> pd.DataFrame:
    return scorer.score(frame, time_column="ds").to_pandas()


def main(registry: str, model: str, source: str, destination: str) -> None:
    scorer = Scorer.find(model, registry=registry)
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        steps = dd.read_parquet(source, split_row_groups=False)
        # The columns, which Dask has to know before it computes.
        columns = scorer.score(steps._meta, time_column="ds")
        answers = steps.map_partitions(score, scorer, meta=columns.to_pandas())
        answers.to_parquet(destination, write_index=False, schema=columns.to_arrow().schema)


if __name__ == "__main__":
    main(*sys.argv[1:])
