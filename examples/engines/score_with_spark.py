"""Score a folder of Parquet files with Spark: a row for each step, in any order and in any file.

    pip install . pyspark pandas pyarrow  # in the checkout of stablernn
    python score_with_spark.py REGISTRY MODEL INPUT OUTPUT

Sequences are collected by Spark, which may move their steps between machines. Their batches are Arrow, and are answered
in the Python processes of the executors, each of which opens the version once.
"""

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from stablernn_runtime.scoring import Scorer


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string_view(kind) or pa.types.is_large_string(kind)


def main(registry: str, model: str, source: str, destination: str) -> None:
    # The executors need the packages of this interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    scorer = Scorer.find(model, registry=registry)
    features = scorer.open().manifest.features

    def score(table: pa.Table | pa.RecordBatch) -> pa.Table:
        answers = pa.table(scorer.score(table))
        # Spark does not read the newer types of strings.
        fields = [pa.field(field.name, pa.string() if _is_text(field.type) else field.type) for field in answers.schema]
        return answers.cast(pa.schema(fields))

    def score_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from score(batch).to_batches()

    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    steps = F.array_sort(F.collect_list(F.struct("ds", *features)))
    sequences = (
        spark.read.parquet(source)
        .groupBy("unique_id")
        .agg(steps.alias("steps"))
        .select("unique_id", *(F.col("steps").getField(feature).alias(feature) for feature in features))
    )
    # The types of the columns, which Spark has to know before it computes.
    schema = spark.createDataFrame(score(sequences.limit(0).toArrow())).schema
    sequences.mapInArrow(score_batches, schema).write.parquet(destination)


if __name__ == "__main__":
    main(*sys.argv[1:])
