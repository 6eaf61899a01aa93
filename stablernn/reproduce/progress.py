"""Progress of the protocol of a table. Imports no torch, so that lists are fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stablernn.atomic_files import to_json_types
from stablernn.reproduce.table import FULL, DataSet, ProtocolName, Row, State, Table

RunDocument = Mapping[str, Any]
"""Description of one run in results."""


def current_runs(table: Table, protocol: ProtocolName, runs: Sequence[RunDocument]) -> list[RunDocument]:
    """Return the runs whose settings are those that the table has now.

    Results may be older than a change of the table.
    """
    pairs = {(row.key, data.key): (row, data) for data in table.data_sets(protocol) for row in table.rows_on(data)}
    current = []
    for run in runs:
        pair = pairs.get((run["row"], run["data"]))
        if pair is not None and run["settings"] == run_settings(table, *pair, protocol):
            current.append(run)
    return current


def run_settings(table: Table, row: Row, data: DataSet, protocol: ProtocolName) -> dict[str, Any]:
    """Return everything that decides the figures of a row on a data set, apart from the seed, as JSON types."""
    settings = {**table.run_tree(row, data, protocol), "hidden_size": row.hidden_size, "options": row.options}
    return dict(to_json_types(settings))


def missing_runs(table: Table, protocol: ProtocolName, runs: Sequence[RunDocument]) -> list[str]:
    """Return the names of the runs of the protocol that are not done, those of optional data sets left out."""
    done = {(run["row"], run["data"], run["seed"]) for run in runs}
    data_sets = [data for data in table.data_sets(protocol) if not data.is_optional]
    several = len(table.data_sets(protocol)) > 1
    return [
        f"{row.key}, {data.key}, seed {seed}" if several else f"{row.key}, seed {seed}"
        for seed in table.protocol(protocol).seeds
        for data in data_sets
        for row in table.rows_on(data)
        if (row.key, data.key, seed) not in done
    ]


def progress(table: Table, protocol: ProtocolName, runs: Sequence[RunDocument]) -> dict[str, Any]:
    """Return how much of a protocol is done.

    Returns:
        ``runs``, ``rows``, ``data`` and ``seeds`` as pairs of what was run and what the protocol has, optional data
        sets left out; ``epochs``, the smallest share of the published training that a run did; ``partial_data``, True
        if a run used a part of its data set.
    """
    data_sets = [entry for entry in table.data_sets(protocol) if not entry.is_optional]
    data = [entry.key for entry in data_sets]
    seeds = table.protocol(protocol).seeds
    protocol_runs = [run for run in runs if run["data"] in data and run["seed"] in seeds]
    return {
        "runs": [len(protocol_runs), sum(len(table.rows_on(entry)) for entry in data_sets) * len(seeds)],
        "rows": [len({run["row"] for run in protocol_runs}), len(table.rows)],
        "data": [len({run["data"] for run in protocol_runs}), len(data)],
        "seeds": [len({run["seed"] for run in protocol_runs}), len(seeds)],
        "epochs": min((run["length"]["share"] for run in runs if run.get("length")), default=None),
        "partial_data": any(run.get("partial_data") for run in runs),
    }


def state_of(table: Table, results: Mapping[str, Any]) -> State:
    """Return the state of results, computed from the runs that they contain and from the table as it is now."""
    protocol: ProtocolName = results["protocol"]["name"]
    runs = current_runs(table, protocol, results["runs"])
    if not runs:
        return "not run"
    if protocol != FULL:
        return "short"
    done = progress(table, protocol, runs)
    is_whole = not missing_runs(table, protocol, runs) and done["epochs"] in (None, 1.0) and not done["partial_data"]
    return "full" if is_whole else "partial"
