"""The goals of the benchmark, and whether its stored tables meet them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

Tables = dict[str, dict[str, Any]]

MAIN = ("antisymmetric B=128 T=784 N=128", "antisymmetric B=32 T=784 N=128", "lipschitz B=128 T=784 N=128")
"""Tables of training steps with a goal each."""
OURS = ("engine ", "sequence.onnx", "step.onnx", "step of a stream", "torch, step by step")
NATIVE = "engine native of serve"
"""How the names of rows begin that are not those of peers or of the limit."""


class Goal(NamedTuple):
    """A goal: what, how much, what was reached (None: not measured), and whether that is enough."""

    what: str
    goal: str
    reached: str | None
    is_met: bool


def goals(tables: Tables) -> Iterator[Goal]:
    """Yield all goals, those without a stored table as not measured."""
    for name, most in zip(MAIN, (1.7, 2.0, 1.7), strict=True):
        yield _at_most(f"training step, {name}: `auto` / limit", most, _auto_share(tables, name, "limit"))
        yield _at_most("the same, `fused` / limit", 2.2, _share(tables, f"train {name}", "engine fused", "limit"))
    names = [*MAIN, "lipschitz B=32 T=784 N=128"]
    for name, suffix in itertools.product(names, ("", ", memory kept")):
        what = f"training step, {name}: times as fast as nn.LSTM{suffix or ' by default'}"
        yield _at_least(what, 4.5, _lstm_factor(tables, name, suffix))
    for name in names:
        value = _auto_share(tables, name, "JAX lax.scan")
        faster = None if value is None else 1 / value
        yield _at_least(f"training step, {name}: times as fast as JAX lax.scan", 1.6, faster)
    for cell in ("antisymmetric", "lipschitz"):
        yield _at_least(f"two threads, {cell} B=128: factor gained / that of the products", 0.85, _gain(tables, cell))
    yield from _variants(tables)
    yield from _whole_grid(tables)
    yield from _inference(tables)


def auto_row(table: dict[str, Any]) -> str:
    """Return the name of the row of the engine that ``auto`` takes."""
    return f"engine {table['auto']}"


def _variants(tables: Tables) -> Iterator[Goal]:
    """Yield the goals of lengths, members, certified training and memory."""
    for cell in ("antisymmetric", "lipschitz"):
        name = f"lengths {cell} B=128 T=784 N=128"
        for variant, most in (("mixed lengths", 0.65), ("dt", 1.15)):
            share = _auto_variant(tables, name, f", {variant}")
            yield _at_most(f"{cell} B=128, {variant}: time / that of full length", most, share)
    for cell, (sizes, most) in itertools.product(
        ("antisymmetric", "lipschitz"), (("B=32 T=784 N=32", 0.6), ("B=128 T=784 N=128", 1.0))
    ):
        name = f"members {cell} {sizes} members=8"
        one_by_one = _auto_variant(tables, name, ", one member after the other")
        share = None if one_by_one is None else 1 / one_by_one
        yield _at_most(f"{cell} {sizes}: 8 members / 8 single runs", most, share)
    for cell, batch in itertools.product(("lipschitz", "rnn"), (32, 128)):
        sizes = f"{cell} B={batch} T=784 N=128"
        yield _at_most(f"certified training, {sizes}: projection / step", 0.1, _projection_share(tables, sizes))
    name = "memory antisymmetric B=32 T=16384 N=128"
    rows = tables.get(name, {}).get("rows", {})
    row = auto_row(tables[name]) if rows else ""
    peak = rows.get(row, {}).get("state_tensors")
    yield _at_most("peak memory, B=32 T=16384 N=128, in tensors of (T, B, N)", 3, peak)
    recomputed = [figures["state_tensors"] for key, figures in rows.items() if key.startswith(f"{row}, recompute")]
    yield _at_most("the same with `recompute_every`", 0.2, min(recomputed, default=None))


def _whole_grid(tables: Tables) -> Iterator[Goal]:
    """Yield the goals that all tables of training steps count for."""
    cells = {name: table for name, table in tables.items() if name.startswith("cells")}
    shares = {name: _share(tables, name, auto_row(table), "engine loop") for name, table in cells.items()}
    slower = [name.split()[1] for name, share in shares.items() if share is not None and share > 1]
    reached = f"{len(cells) - len(slower)} of {len(cells)}{': not ' if slower else ''}{', '.join(slower)}"
    yield Goal("cells at least as fast as with `loop`", "all", reached if cells else None, bool(cells) and not slower)
    near, settings = 0, 0
    for name, variant in _settings(tables):
        rows = tables[name]["rows"]
        times = {key: row["ratio"] for key, row in rows.items() if key.startswith("engine ") and variant(key)}
        auto = next(key for key in times if key.split(",")[0] == auto_row(tables[name]))
        settings += 1
        near += times[auto] <= 1.05 * min(times.values())
    yield Goal(
        "settings in which `auto` is within 5 % of the fastest engine",
        "9 of 10",
        f"{near} of {settings}" if settings else None,
        bool(settings) and near >= 0.9 * settings,
    )


def _settings(tables: Tables) -> Iterator[tuple[str, Callable[[str], bool]]]:
    """Yield each table in which engines are compared, with a test for the rows of one setting."""
    for name, table in tables.items():
        if table.get("auto") is None or name.startswith(("allocator", "memory", "certified", "inference", "step")):
            continue
        suffixes = dict.fromkeys(key.partition(",")[2] for key in table["rows"] if key.startswith("engine "))
        for suffix in suffixes:
            if "one member after the other" not in suffix:
                yield name, lambda key, suffix=suffix: key.partition(",")[2] == suffix  # type: ignore[misc]


def _inference(tables: Tables) -> Iterator[Goal]:
    for cell, batch in itertools.product(("antisymmetric", "lipschitz"), (32, 128)):
        rows = tables.get(f"inference {cell} B={batch} T=784 N=128", {}).get("rows", {})
        ours, peers = _fastest(rows, is_ours=True), _fastest(rows, is_ours=False)
        share = None if ours is None or peers is None else ours / peers
        yield _at_most(f"inference, {cell} B={batch}: fastest of ours / fastest peer", 1.0, share)
    for cell, most in (("antisymmetric", 1.6), ("lipschitz", 2.2)):
        name = f"inference {cell} B=1 T=784 N=128"
        rows = tables.get(name, {}).get("rows", {})
        jax = rows.get("JAX lax.scan", {}).get("ratio")
        native = min((row["ratio"] for key, row in rows.items() if key.startswith(NATIVE)), default=None)
        yield _at_most(f"inference, {cell} B=1: `native` / JAX lax.scan", 1.0, _divided(native, jax))
        onnx = _share(tables, name, "sequence.onnx", "JAX lax.scan")
        yield _at_most(f"inference, {cell} B=1: sequence.onnx / JAX lax.scan", most, onnx)
    for cell in ("antisymmetric", "lipschitz"):
        name = f"step {cell} B=1 N=128"
        rows = tables.get(name, {}).get("rows", {})
        native = min((row["ratio"] for key, row in rows.items() if key.startswith(NATIVE)), default=None)
        called = rows.get("step.onnx, session.run", {}).get("ratio")
        yield _at_most(f"a streamed step, {cell}: `native` / step.onnx", 1 / 6, _divided(native, called))
        bound = _share(tables, name, "step.onnx, bound buffers", "step.onnx, session.run")
        yield _at_most(f"a streamed step, {cell}: step.onnx with bound buffers / without", 0.6, bound)


def _fastest(rows: dict[str, dict[str, float]], *, is_ours: bool) -> float | None:
    others = ((key, row) for key, row in rows.items() if key != "limit")
    return min((row["ratio"] for key, row in others if key.startswith(OURS) == is_ours), default=None)


def _share(tables: Tables, name: str, row: str, other: str) -> float | None:
    """Return the ratio of a row divided by that of another of the same table; None if one is missing."""
    rows = tables.get(name, {}).get("rows", {})
    return _divided(rows.get(row, {}).get("ratio"), rows.get(other, {}).get("ratio"))


def _auto_share(tables: Tables, name: str, other: str) -> float | None:
    table = tables.get(f"train {name}")
    return None if table is None else _share(tables, f"train {name}", auto_row(table), other)


def _lstm_factor(tables: Tables, name: str, suffix: str) -> float | None:
    """Return by how much ``auto`` is faster than nn.LSTM in a process of its own."""
    table = tables.get(f"allocator {name}")
    if table is None:
        return None
    return _share(tables, f"allocator {name}", f"nn.LSTM{suffix}", f"{auto_row(table)}{suffix}")


def _auto_variant(tables: Tables, name: str, suffix: str) -> float | None:
    """Return the time of a variant divided by that of the plain row of the same engine."""
    table = tables.get(name)
    return None if table is None else _share(tables, name, f"{auto_row(table)}{suffix}", auto_row(table))


def _projection_share(tables: Tables, sizes: str) -> float | None:
    name = f"certified {sizes}"
    if name not in tables:
        return None
    return _share(tables, name, "projection of the step before", f"{auto_row(tables[name])}, certified")


def _gain(tables: Tables, cell: str) -> float | None:
    """Return the factor gained by the second thread, divided by that which the products alone gain from it."""
    name = f"threads {cell} B=128 T=784 N=128"
    gains = [
        _share(tables, name, row, f"{row}, 2 threads")
        for row in ((auto_row(tables[name]), "limit") if name in tables else ())
    ]
    return _divided(*gains) if gains else None


def _divided(value: float | None, other: float | None) -> float | None:
    return None if value is None or not other else value / other


def _at_most(what: str, most: float, value: float | None) -> Goal:
    return _goal(what, f"at most {most:.2f}", value, value is not None and value <= most)


def _at_least(what: str, least: float, value: float | None) -> Goal:
    return _goal(what, f"at least {least:.2f}", value, value is not None and value >= least)


def _goal(what: str, goal: str, value: float | None, is_met: bool) -> Goal:
    return Goal(what, goal, None if value is None else f"{value:.2f}", is_met)


def summary(found: Iterable[Goal]) -> tuple[int, int, int]:
    """Return how many goals are met, missed and not measured."""
    goals = list(found)
    missing = sum(goal.reached is None for goal in goals)
    met = sum(goal.is_met for goal in goals)
    return met, len(goals) - met - missing, missing
