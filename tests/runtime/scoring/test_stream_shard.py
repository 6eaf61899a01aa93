"""Streams with state by key have the bits of whole sequences, in any order of events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from published_models import Published
from shard_helpers import TOKENS, add_events, last_outputs, whole_outputs
from stablernn_runtime.errors import InputError
from stablernn_runtime.scoring import Scorer, StreamAnswers, StreamShard
from stream_helpers import assert_same_bits, distances, offline, samples

STATIC = np.array([[1.0, np.nan], [-3.0, 2.5], [0.0, 9.0]], np.float32)


def test_events_in_any_order_give_the_bits_of_the_whole_sequence(shard: StreamShard, animals: Scorer) -> None:
    assert add_events(shard, "a", 0).numbers.tolist() == [0]
    assert len(add_events(shard, "a", 2)) == 0
    assert shard.waiting == 1
    assert len(add_events(shard, "a", 3)) == 0
    answers = add_events(shard, "a", 1)
    assert answers.numbers.tolist() == [1, 2, 3]
    assert answers.gaps.tolist() == [0, 0, 0]
    assert np.array_equal(last_outputs(answers), whole_outputs(animals, 0, 1, 2, 3))
    # Within a call they are sorted, and stepped one after the other.
    answers = shard.add(["b", "a", "b", "b"], [1, 4, 0, 2], [[1.0], [4.0], [0.0], [2.0]])
    assert list(zip(answers.keys, answers.numbers.tolist(), strict=True)) == [("a", 4), ("b", 0), ("b", 1), ("b", 2)]
    assert np.array_equal(last_outputs(answers), whole_outputs(animals, 0, 1, 2))
    assert np.array_equal(answers.outputs["probabilities"][0], whole_outputs(animals, 0, 1, 2, 3, 4))
    assert (shard.waiting, shard.counts.gaps, shard.counts.events) == (0, 0, 8)


def test_an_event_that_comes_again_is_answered_again_without_a_step(shard: StreamShard, animals: Scorer) -> None:
    first = add_events(shard, "a", 0, 1)
    again = add_events(shard, "a", 1)
    assert (again.numbers.tolist(), again.is_again.tolist()) == ([1], [True])
    assert np.array_equal(last_outputs(again), last_outputs(first))
    # Older ones have no answer any more, and one that waits is answered once.
    assert len(add_events(shard, "a", 0)) == 0
    assert len(add_events(shard, "a", 3, 3)) == 0
    assert add_events(shard, "a", 2, 2).is_again.tolist() == [False, True, False]
    assert np.array_equal(last_outputs(add_events(shard, "a", 4)), whole_outputs(animals, 0, 1, 2, 3, 4))
    counts = shard.counts
    assert (counts.events, counts.answered_again, counts.late, counts.duplicates) == (9, 2, 1, 1)
    # It may come again together with the event before it.
    add_events(shard, "a", 6)
    assert add_events(shard, "a", 5, 6, 7).numbers.tolist() == [5, 6, 7]
    assert (shard.waiting, shard.counts.duplicates) == (0, 2)


def test_a_gap_is_reported_once_an_event_is_too_far_ahead(shard: StreamShard, animals: Scorer) -> None:
    add_events(shard, "a", 0)
    assert len(add_events(shard, "a", 3, 5)) == 0
    # 6 is five ahead of 1, and the lateness is 4; it is three ahead of 4.
    answers = add_events(shard, "a", 6)
    assert (answers.numbers.tolist(), answers.gaps.tolist()) == ([3], [2])
    assert np.array_equal(last_outputs(answers), whole_outputs(animals, 0, 3))
    answers = add_events(shard, "a", 900)
    assert (answers.numbers.tolist(), answers.gaps.tolist()) == ([5, 6, 900], [1, 0, 893])
    assert (shard.counts.gaps, shard.waiting) == (896, 0)
    assert len(add_events(shard, "a", 902)) == 0
    assert shard.next_number("a") == 903
    answers = shard.flush()
    assert (answers.numbers.tolist(), answers.gaps.tolist()) == ([902], [1])
    assert len(shard.flush(["a", "nobody"])) == 0


def test_a_wrong_sample_has_an_error_and_takes_its_number(shard: StreamShard, animals: Scorer) -> None:
    keys = ["inf", "shape", "text", "huge", "none", "good"]
    wrong = [[np.inf], [1.0, 2.0], ["loud"], [1e39], [None], [0.5]]
    answers = shard.add(keys, [0] * 6, wrong)
    label = "model 'animals:1'"
    assert answers.errors == [
        "loudness is infinite or beyond float32.",
        f"The sample must hold numbers in the shape (1,) for {label}, got [1.0, 2.0].",
        f"The sample must hold numbers in the shape (1,) for {label}, got ['loud'].",
        "loudness is infinite or beyond float32.",
        None,
        None,
    ]
    has_error = np.array([error is not None for error in answers.errors])
    assert (np.isnan(answers.outputs["probabilities"]).all(axis=1) == has_error).all()
    assert shard.counts.errors == 4
    # It comes again: the error is the answer, even if the sample is right now.
    again = shard.add(["inf"], [0], [[1.0]])
    assert (again.errors, again.is_again.tolist()) == ([answers.errors[0]], [True])
    after = shard.add(["inf"], [1], [[1.0]])
    assert after.errors == [None]
    assert np.array_equal(last_outputs(after), whole_outputs(animals, 1.0))
    # Before its turn it waits as any other.
    assert len(shard.add(["good"], [2], [[np.inf]])) == 0
    late = shard.add(["good"], [1], [[7.0]])
    assert late.errors == [None, "loudness is infinite or beyond float32."]
    assert shard.counts.errors == 5


@pytest.mark.parametrize("sample", [["5"], [True], [10**400], [[]]])
@pytest.mark.parametrize("other", [[1.0], [None]], ids=["number", "missing"])
def test_a_sample_is_refused_whatever_comes_with_it(shard: StreamShard, sample: Any, other: Any) -> None:
    # NumPy alone makes 5 of "5" beside None, and 1 of True beside a number.
    answers = shard.add(["wrong", "right"], [0, 0], [sample, other])
    assert answers.errors[0] is not None
    assert answers.errors[0].startswith("The sample must hold numbers in the shape (1,)")
    assert answers.errors[1] is None


def test_outputs_that_are_not_finite_cost_one_stream_its_answer(
    shard: StreamShard, animals: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Scorer.advance

    def refusing(scorer: Scorer, x: Any, *arguments: Any, **options: Any) -> Any:
        if (x == 7).any():
            raise InputError("The output 'probabilities' is not finite.")
        return advance(scorer, x, *arguments, **options)

    monkeypatch.setattr(Scorer, "advance", refusing)
    values = [[float(number)] for number in range(20)]
    answers = shard.add(list(range(20)), [0] * 20, values)
    assert [number for number, error in enumerate(answers.errors) if error] == [7]
    assert np.array_equal(last_outputs(answers), whole_outputs(animals, 19.0))
    monkeypatch.undo()
    assert np.array_equal(last_outputs(shard.add([7], [1], [[3.0]])), whole_outputs(animals, 3.0))


SLOW_KINDS = [pytest.param(name, marks=pytest.mark.slow) for name in ("deep", "text", "ragged", "still")]


@pytest.mark.parametrize("name", ["classes", "timed", "patched", *SLOW_KINDS])
def test_every_kind_of_stream_has_the_bits_of_the_sequence_graph(kinds: Published, name: str) -> None:
    scorer = Scorer.find(name, registry=kinds.root)
    model, steps = scorer.open(), 9
    x = np.stack([samples(model, steps, seed) for seed in range(3)])
    times = [distances(model, steps, seed) for seed in range(3)]
    static = STATIC if name == "still" else None
    shard = StreamShard(scorer)
    content, parts = b"", []
    for step in range(steps):
        dt = None if times[0] is None else np.stack([time[step] for time in times if time is not None])
        if dt is not None and step == 0:
            # That of the first sample does not count.
            dt[:] = 2.5
        parts.append(shard.add([b"k", "k", 0], [step] * 3, x[:, step], dt=dt, static=static if step == 0 else None))
        content = shard.dump()
        shard = StreamShard.load(scorer, content)
    # A model of patches answers when one is full, and to nothing else.
    stride = model.patch_stride
    assert [part.numbers.tolist() for part in parts] == [[n] * 3 * ((n + 1) % stride == 0) for n in range(steps)]
    answers = StreamAnswers.concatenate([part for part in parts if len(part)])
    for row, key in enumerate([b"k", "k", 0]):
        options = {} if static is None else {"static": static[row : row + 1]}
        assert_same_bits(
            {name: value[row::3] for name, value in answers.outputs.items()},
            offline(model, x[row], times[row], **options),
        )
        token = shard.token(key, TOKENS)
        assert TOKENS.read(token).step == steps
        shard.put("moved", token, TOKENS)
        moved, expected_states = (TOKENS.read(shard.token(name, TOKENS)) for name in ("moved", key))
        assert moved.static.tobytes() == expected_states.static.tobytes()
        assert_same_bits(moved.states, expected_states.states)


def test_readings_that_fill_no_patch_have_no_answer(kinds: Published) -> None:
    scorer = Scorer.find("patched", registry=kinds.root)
    shard = StreamShard(scorer, lateness=0)
    x = samples(scorer.open(), 8)
    assert len(shard.add(["a"] * 2, [0, 1], x[:2])) == 0
    # The event before, again; one that cannot be taken; and a gap: the answer that follows says so.
    assert len(shard.add(["a"], [1], x[1:2])) == 0
    refused = shard.add(["a"], [2], [[np.inf, 0.0]])
    assert refused.errors == ["l is infinite or beyond float32."]
    shard = StreamShard.load(scorer, shard.dump())
    assert len(shard.add(["b"] * 2, [0, 1], x[:2])) == 0
    full = shard.add(["a", "a", "b"], [4, 5, 3], [x[2], x[3], x[2]])
    assert (full.keys, full.numbers.tolist(), full.gaps.tolist()) == (["a", "b"], [4, 3], [1, 1])
    expected = offline(scorer.open(), x[:3])
    for row in range(2):
        assert_same_bits({name: value[row : row + 1] for name, value in full.outputs.items()}, expected)
    # The patch after it has begun.
    assert TOKENS.read(shard.token("a", TOKENS)).step == 4
    assert shard.add(["b"], [3], x[2:3]).is_again.tolist() == [True]


@pytest.mark.parametrize(
    "name",
    [
        "classes",
        "timed",
        "patched",
    ],
)
def test_an_event_has_any_number_of_samples(kinds: Published, name: str) -> None:
    scorer = Scorer.find(name, registry=kinds.root)
    model, sizes = scorer.open(), [1, 4, 2, 3]
    x, times = samples(model, sum(sizes)), distances(model, sum(sizes))
    static = STATIC[:1] if name == "still" else None
    one_by_one, together = StreamShard(scorer), StreamShard(scorer)
    expected = [
        one_by_one.add(
            ["a"], [step], x[step : step + 1], dt=None if times is None else times[step : step + 1], static=static
        )
        for step in range(len(x))
    ]
    parts, first = [], 0
    for size in sizes:
        event = x[first] if size == 1 else x[first : first + size].tolist()
        dt = None if times is None else [times[first] if size == 1 else times[first : first + size]]
        parts.append(together.add(["a"], [first], [event], dt=dt, static=static))
        first += size
    answers, singles = StreamAnswers.concatenate(parts), StreamAnswers.concatenate(expected)
    assert answers.numbers.tolist() == singles.numbers.tolist()
    assert_same_bits(answers.outputs, singles.outputs)
    assert together.next_number("a") == len(x)
    assert together.token("a", TOKENS) is not None
    # A value that cannot be taken costs its own sample alone.
    if name == "classes":
        assert together.add(["a"], [len(x)], [[[np.inf, 1.0], [0.5, 1.0]]]).errors[1] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"], [0], []), "There are 1 keys and 0 samples"),
        ((["a"], [0.5], [[1.0]]), "numbers must hold 1 whole numbers"),
        ((["a"], [-1], [[1.0]]), "Numbers of events are from 0 to"),
        (([1.5], [0], [[1.0]]), "Keys are str, bytes or int, got float."),
    ],
)
def test_calls_that_do_not_fit_are_refused_whole(shard: StreamShard, arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match="^" + message):
        shard.add(*arguments)
    assert (len(shard), shard.counts.events) == (0, 0)


def test_other_inputs_that_do_not_fit_are_refused(kinds: Published, shard: StreamShard) -> None:
    with pytest.raises(InputError, match=r"takes no dt; its samples are one regular step apart\.$"):
        shard.add(["a"], [0], [[1.0]], dt=[1.0])
    with pytest.raises(InputError, match=r"takes no static values\.$"):
        shard.add(["a"], [0], [[1.0]], static=[[1.0]])
    with pytest.raises(InputError, match="^lateness must be 0 or more, got -1"):
        StreamShard(shard.scorer, lateness=-1)
    timed = StreamShard(Scorer.find("timed", registry=kinds.root))
    with pytest.raises(InputError, match="^dt must hold numbers in the shape"):
        timed.add(["a"], [0], [[1.0]], dt=[[1.0]])
    answers = timed.add(["a", "b", "c", "d"], [0] * 4, [[1.0]] * 4, dt=[-1.0, np.nan, 5.0, 4.0])
    assert answers.errors == [f"dt must be 0 or more and at most 4, got {value}." for value in (-1.0, "nan", 5.0)] + [
        None
    ]


@pytest.mark.slow
def test_static_values_and_tokens_that_do_not_fit_are_refused(kinds: Published) -> None:
    still = StreamShard(Scorer.find("still", registry=kinds.root))
    for static in ([[1.0]], [[1.0, np.inf]], [[1.0, 1e39]]):
        with pytest.raises(InputError, match="^static must be finite or NaN in the shape"):
            still.add(["a"], [0], [[1.0]], static=static)
    text = StreamShard(Scorer.find("text", registry=kinds.root))
    answers = text.add(["a", "b", "c"], [0] * 3, [9, 1.5, 4])
    assert answers.errors == [
        "The token must be from 0 to 4 for model 'text:1', got 9.",
        "The sample must hold whole numbers in the shape () for model 'text:1', got 1.5.",
        None,
    ]
