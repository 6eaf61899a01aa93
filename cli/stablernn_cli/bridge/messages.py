"""Topics and payloads of messages: keys, samples and answers."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from stablernn_cli.errors import UsageError
from stablernn_runtime.scoring import StreamAnswers
from stablernn_runtime.scoring.stream_events import MAX_NUMBER


class TopicKeys:
    """Reads keys from topics.

    Args:
        topic: The subscription, with at least one ``+``, or a ``#`` at its end.

    Raises:
        UsageError: If it has no wildcard, one that does not stand for whole levels, or is a shared subscription.
    """

    def __init__(self, topic: str) -> None:
        levels = topic.split("/")
        if levels[0] == "$share":
            raise UsageError(f"--topic must not be a shared subscription, which splits the streams: '{topic}'.")
        is_misplaced = any(len(level) > 1 and {"+", "#"} & set(level) for level in levels) or "#" in levels[:-1]
        if is_misplaced or not {"+", "#"} & set(levels):
            raise UsageError(f"--topic must have '+' as a level, or '#' as the last one, to take keys from: '{topic}'.")
        patterns = {"+": "([^/]*)", "#": "(.*)"}
        self._pattern = re.compile("/".join(patterns.get(level, re.escape(level)) for level in levels), re.DOTALL)

    def key(self, topic: str) -> str | None:
        """Return the levels that the wildcards stand for, joined by ``/``; None if the topic is another one."""
        match = self._pattern.fullmatch(topic)
        return None if match is None else "/".join(match.groups())


def read_payload(payload: bytes) -> tuple[Any, int | None]:
    """Return the sample of a message, and its number if it has one.

    Args:
        payload: JSON: a number, an array of numbers, or an object with one of both as ``x`` and the number as ``n``.

    Raises:
        ValueError: If it is not; a sentence.
    """
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The payload is not JSON: {error}.") from error
    number = None
    if isinstance(value, dict):
        if "x" not in value or set(value) - {"x", "n"}:
            raise ValueError("The payload is an object without 'x', or with names other than 'x' and 'n'.")
        number = value.get("n")
        # In Python, a bool is an int.
        if number is not None and (type(number) is not int or not 0 <= number < MAX_NUMBER):
            raise ValueError(f"n must be a whole number from 0 to 2**62 - 1, got {number!r:.40}.")
        value = value["x"]
    values = value if isinstance(value, list) else [value]
    if any(isinstance(part, list | dict) for part in values):
        raise ValueError("The payload is not a number, an array of numbers, or an object with one of both as 'x'.")
    return value, number


def answer_payloads(answers: StreamAnswers, labels: list[str] | None) -> list[bytes]:
    """Return answers as JSON objects with ``n``, the outputs or ``error``, ``gap`` and ``again``."""
    payloads = []
    for row in range(len(answers)):
        content: dict[str, Any] = {"n": int(answers.numbers[row])}
        if (error := answers.errors[row]) is not None:
            content["error"] = error
        elif labels is not None and "probabilities" in answers.outputs:
            shares = answers.outputs["probabilities"][row]
            content["label"] = labels[int(np.argmax(shares))]
            content["probabilities"] = dict(zip(labels, shares.tolist(), strict=True))
        else:
            content |= {name: value[row].tolist() for name, value in answers.outputs.items()}
        if answers.gaps[row]:
            content["gap"] = int(answers.gaps[row])
        if answers.is_again[row]:
            content["again"] = True
        payloads.append(json.dumps(content).encode())
    return payloads
