"""Events for a shard of streams, and the answers to expect."""

from __future__ import annotations

from typing import Any

import numpy as np

from stablernn_runtime import StateTokens
from stablernn_runtime.scoring import Scorer, StreamAnswers, StreamShard
from stablernn_runtime.state_token import key_from_text
from stream_helpers import STATE_KEY

TOKENS = StateTokens(key_from_text(STATE_KEY, "the test"), 600)


def add_events(shard: StreamShard, key: Any, *numbers: int) -> StreamAnswers:
    """Add events of a stream of which each sample is its number."""
    return shard.add([key] * len(numbers), list(numbers), [[float(number)] for number in numbers])


def whole_outputs(scorer: Scorer, *values: float) -> np.ndarray:
    """Return the probabilities of the sequence graph."""
    (probabilities,) = scorer.open().run_numpy(np.array(values, np.float32)[None, :, None])["probabilities"]
    return probabilities


def last_outputs(answers: StreamAnswers) -> np.ndarray:
    return answers.outputs["probabilities"][-1]
