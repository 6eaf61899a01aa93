"""Results of tables: a file with a hash of its content, and how much of the protocol it has. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stablernn.atomic_files import read_json, to_json_types, write_json
from stablernn.errors import CheckpointError
from stablernn_papers.table import FULL, STATES, DataSet, ProtocolName, Row, State, Table

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
        sets left out; ``epochs``, the smallest share of the published training that a run on these did;
        ``partial_data``, True if one used a part of its data set.
    """
    data_sets = [entry for entry in table.data_sets(protocol) if not entry.is_optional]
    data = [entry.key for entry in data_sets]
    seeds = table.protocol(protocol).seeds
    runs = [run for run in runs if run["data"] in data]
    protocol_runs = [run for run in runs if run["seed"] in seeds]
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


def data_states(table: Table, results: Mapping[str, Any]) -> dict[str, State]:
    """Return the state of each data set of the protocol, also of those that are only run where they are named.

    A data set is ``full`` where all its rows were run with all seeds of the protocol, for the whole of the published
    training.
    """
    protocol: ProtocolName = results["protocol"]["name"]
    runs = current_runs(table, protocol, results["runs"])
    return {data.key: _data_state(table, protocol, data, runs) for data in table.data_sets(protocol)}


def _data_state(table: Table, protocol: ProtocolName, data: DataSet, runs: Sequence[RunDocument]) -> State:
    data_runs = [run for run in runs if run["data"] == data.key]
    if not data_runs:
        return "not run"
    if protocol != FULL:
        return "short"
    is_whole = all(
        not run.get("partial_data") and (not run.get("length") or run["length"]["share"] == 1) for run in data_runs
    )
    done, total = run_counts(table, protocol, data, runs)
    return "full" if is_whole and done == total else "partial"


def run_counts(table: Table, protocol: ProtocolName, data: DataSet, runs: Sequence[RunDocument]) -> tuple[int, int]:
    """Return how many runs of the protocol on a data set were done, and how many there are."""
    seeds = table.protocol(protocol).seeds
    done = [run for run in runs if run["data"] == data.key and run["seed"] in seeds]
    return len(done), len(table.rows_on(data)) * len(seeds)


def describe_state(table: Table, results: Mapping[str, Any]) -> str:
    """Return the state of results in words, such as ``full on digits; not run on mnist`` where data sets differ.

    Data sets that are only run where they are named are left out until they are.
    """
    states = data_states(table, results)
    for data in table.data_sets(results["protocol"]["name"]):
        if data.is_optional and states[data.key] == "not run":
            del states[data.key]
    if len(set(states.values())) <= 1:
        return state_of(table, results)
    # The most advanced first.
    groups = {state: [key for key in states if states[key] == state] for state in reversed(STATES)}
    return "; ".join(f"{state} on {', '.join(keys)}" for state, keys in groups.items() if keys)


def describe_optional_runs(table: Table, results: Mapping[str, Any]) -> list[str]:
    """Return how many runs were done on each data set that is only run where it is named, and was."""
    protocol: ProtocolName = results["protocol"]["name"]
    runs = current_runs(table, protocol, results["runs"])
    optional = [data for data in table.data_sets(protocol) if data.is_optional]
    counts = {data.key: run_counts(table, protocol, data, runs) for data in optional}
    return [f"{key} {done} of {total} runs" for key, (done, total) in counts.items() if done]


HASH_KEY = "sha256"


def content_hash(results: Mapping[str, Any]) -> str:
    """Return the SHA-256 of results without their own hash, independent of indentation and of the order of keys."""
    content = {key: value for key, value in results.items() if key != HASH_KEY}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_results(path: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """Write results with their hash, and return them as JSON types."""
    document = dict(to_json_types(results))
    document[HASH_KEY] = content_hash(document)
    write_json(path, document)
    return document


def read_results(path: Path) -> dict[str, Any] | None:
    """Read results; None if there is no such file.

    Raises:
        CheckpointError: If the file is not JSON, or was changed after it was written.
    """
    if not path.is_file():
        return None
    results = read_json(path)
    if not isinstance(results, dict) or HASH_KEY not in results:
        raise CheckpointError(
            f"'{path}' has no '{HASH_KEY}' of its content, so that nobody can tell whether it was edited. Restore the "
            "file, or run 'stablernn reproduce' again, which writes it from the finished runs."
        )
    if results[HASH_KEY] != content_hash(results):
        raise CheckpointError(
            f"'{path}' was edited after it was written: its content does not have the hash that it states. Restore the "
            "file, or run 'stablernn reproduce' again, which writes it from the finished runs."
        )
    return results


def stored_path(key: str) -> Path | None:
    """Return the file with the stored results of a table, or None if there is none."""
    path = Path(__file__).parent / "results" / key / "results.json"
    return path if path.is_file() else None


def stored_results(table: Table) -> tuple[Path, dict[str, Any]] | None:
    """Return the file and content of the stored results of a table, or None.

    Results with other settings of measurements are ignored: the table was changed after they were made.

    Raises:
        CheckpointError: If the file was edited.
    """
    path = stored_path(table.key)
    results = None if path is None else read_results(path)
    if path is None or results is None:
        return None
    protocol = to_json_types(table.full.document())
    is_current = results["protocol"]["name"] == FULL and all(
        results["protocol"].get(key) == protocol[key] for key in protocol
    )
    return (path, results) if is_current else None
