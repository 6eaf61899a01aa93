"""Versions as functions of tables, for programs that move data: processes, Dask, Spark, streams.

A :class:`Scorer` is a reference to a version, not an open one. It pickles into a few hundred bytes, and each process
opens the version once, when it first scores. No torch, no server.

>>> from stablernn_runtime.scoring import Scorer
>>> scorer = Scorer.find("animals@production")
>>> answers = scorer.score({"id": ["a", "b"], "loudness": [[0.1, 0.4, 0.3], [0.2]]})
>>> answers.columns
['id', 'label', 'probability_cat', 'probability_dog', 'probability_owl', 'probability_rat', 'error']
"""

from __future__ import annotations

from stablernn_runtime.scoring.scorer import Scorer
from stablernn_runtime.scoring.shard_checkpoint import map_checkpoint
from stablernn_runtime.scoring.stream_events import StreamAnswers, StreamCounts
from stablernn_runtime.scoring.stream_shard import StreamShard

__all__ = ["Scorer", "StreamAnswers", "StreamCounts", "StreamShard", "map_checkpoint"]
