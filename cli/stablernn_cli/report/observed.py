"""Observations of a certificate document: scores, parity, stored reports, and trajectories drawn for the document."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stablernn_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from stablernn_registry import Record, Registry, Version

STABILITY = "stability.json"
OTHER_WEIGHTS = "left out: the report is about other weights"
UNREADABLE = "left out: the report cannot be read"


def observed_of_version(registry: Registry, version: Version, weights: str | None) -> dict[str, Any]:
    """Return what was observed of a version: scores, parity, and the latest report of each kind.

    Args:
        registry: The registry.
        version: The version.
        weights: Digest of its weights, to which a report must belong.

    Raises:
        stablernn_registry.RegistryError: If a record is damaged.
    """
    from stablernn_registry.reports import ROBUSTNESS

    manifest, records = version.manifest, registry.records(version.ref)
    # A record was measured after the report that was exported with the version.
    stability = _latest(records, STABILITY)
    robustness = _latest(records, ROBUSTNESS)
    content = None
    if robustness is not None:
        content = robustness.read(ROBUSTNESS)
    elif ROBUSTNESS in manifest.files:
        content = version.read(ROBUSTNESS)
    return {
        "metrics": manifest.metrics,
        "parity": manifest.parity or None,
        "stability_report": None
        if stability is None
        else {**_source(stability), **_stability_facts(stability.read(STABILITY), weights)},
        "robustness_report": None
        if content is None
        else {**_source(robustness), **_robustness_facts(content, weights)},
    }


def observed_of_run(path: Path, weights: str | None) -> dict[str, Any]:
    """Return what was observed of a run: its scores and its robustness report; it keeps no others."""
    from stablernn_registry.reports import ROBUSTNESS

    summary = path / "summary.json"
    tree = _parse_object(summary.read_bytes()) if summary.is_file() else None
    robustness = path / ROBUSTNESS
    return {
        "metrics": value_at(tree, "metrics") or {},
        "parity": None,
        "stability_report": None,
        "robustness_report": {**_source(None), **_robustness_facts(robustness.read_bytes(), weights)}
        if robustness.is_file()
        else None,
    }


def compare(entries: Sequence[Mapping[str, Any]], observed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows of one quantity each: its proved bound beside what was observed.

    Args:
        entries: Certificates of the document; the last one is that of the drawn trajectories.
        observed: Observations of the document.
    """
    # Trajectories are drawn within the range of the last certificate.
    entry, drawn = entries[-1], observed["drawn_trajectories"]
    stability = observed["stability_report"] or {}
    values = {claim["id"]: claim["value"] for claim in entry["claims"]}
    rows = [] if drawn["note"] is not None else _drawn_rows(drawn, values)
    if stability.get("note") is None and stability:
        source = f"stability report on {stability['data']}, {stability['split']}"
        proved = drawn.get("spectral_radius_bound")
        rows.append(
            _row("modulus of an eigenvalue of the Jacobian of one step", proved, stability["spectral_radius"], source)
        )
        rows += [
            _row(
                f"factor of one step, {row['layer'] or 'the layer'}, {row['norm']}",
                _proved_factor(entry, row["layer"], row["norm"]),
                row["factor"],
                source,
            )
            for row in stability["largest_factors"]
        ]
        rows.append(
            _row(
                "largest Lyapunov exponent, nats per step",
                # Over irregular time the rate is one over the time of a regular step.
                _log(entry["contraction_rate"]) if entry["time"]["steps"] == "regular" else None,
                stability["largest_lyapunov_exponent"],
                source,
            )
        )
    # Parity is measured on samples, and nothing is proved about it.
    parity = number_at(observed["parity"], "max_rel_error")
    if parity is not None:
        rows.append(_row("relative error of the exported graphs", None, parity, "parity check of the export"))
    return rows


def _proved_factor(entry: Mapping[str, Any], layer: str | None, norm: str | None) -> float | None:
    """Return the proved factor of a step of a layer in a norm that needs no matrix; None if none is proved.

    Numbers that stand in a report are none: anybody may record one. Nor is the matrix of its norm known.
    """
    if norm not in ("l2", "linf") or norm != entry["norm"]:
        return None
    name = f"{layer or ''} contraction rate".strip()
    return next((row["value"] for row in entry["hypotheses"] if row["name"] == name), None)


def _drawn_rows(drawn: Mapping[str, Any], values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the drawn trajectories; what a step may do at most is known even if it is no contraction."""
    step = _row(
        "factor by which one step changes the distance of two states",
        drawn["step_factor_bound"],
        drawn["largest_step_factor"],
        _DRAWN,
    )
    radius = _row(
        "modulus of an eigenvalue of the Jacobian of one step",
        drawn["spectral_radius_bound"],
        drawn["largest_spectral_radius"],
        _DRAWN,
    )
    norms = [
        _row(f"norm of {state}", values.get(f"state_ball_{state}"), norm, _DRAWN)
        for state, norm in drawn["largest_state_norms"].items()
    ]
    return [step, radius, *norms]


# The inputs are not data, which a reader must see at every number.
_DRAWN = "trajectories drawn for this document"


def _row(quantity: str, proved: float | None, observed: float | None, source: str) -> dict[str, Any]:
    return {"quantity": quantity, "proved_at_most": proved, "largest_observed": observed, "observed_on": source}


def _log(rate: float | None) -> float | None:
    # A rate of 0 erases every difference, and has no finite exponent.
    return None if not rate else math.log(rate)


def _latest(records: Sequence[Record], filename: str) -> Record | None:
    """Return the last record that has a file."""
    matching = [record for record in records if filename in record.entry.files]
    return matching[-1] if matching else None


def _source(record: Record | None) -> dict[str, Any]:
    return {"recorded": record and record.entry.time, "who": record and record.entry.who}


def _stability_facts(content: bytes, weights: str | None) -> dict[str, Any]:
    """Return the main figures of a stability report, or a note why they are left out."""
    tree = _parse_object(content)
    if tree is None:
        return {"note": UNREADABLE}
    # Anybody may record a report: one about other weights says nothing about this model.
    if text_at(tree, "weights") != weights:
        return {"note": OTHER_WEIGHTS}
    empirical = value_at(tree, "empirical")
    return {
        "note": None,
        **{key: text_at(tree, key) for key in ("data", "split")},
        **{key: _count_at(empirical, key) for key in ("sequences", "steps")},
        "spectral_radius": number_at(empirical, "jacobian", "spectral_radius", "most"),
        "largest_factors": [
            {"layer": text_at(row, "layer"), "norm": text_at(row, "norm"), "factor": number_at(row, "factor")}
            for row in _list_at(empirical, "jacobian", "largest_factors")
            if isinstance(row, Mapping)
        ],
        "largest_lyapunov_exponent": next(map(number_at, _list_at(empirical, "lyapunov", "exponents")), None),
        "lyapunov_standard_error": next(map(number_at, _list_at(empirical, "lyapunov", "standard_error")), None),
    }


def _robustness_facts(content: bytes, weights: str | None) -> dict[str, Any]:
    """Return the main figures of a robustness report, or a note why they are left out."""
    from stablernn_registry import RobustnessReport

    report = RobustnessReport.parse(content)
    if report is None:
        return {"note": UNREADABLE}
    if report.weights != weights:
        return {"note": OTHER_WEIGHTS}
    return {"note": None, "sample": report.sample, "figures": report.figures()}


# Reading of stored reports, in which any JSON may stand.
def _parse_object(content: bytes) -> Mapping[str, Any] | None:
    """Return the JSON object in some bytes; None if there is none."""
    try:
        tree = json.loads(content)
    # Deep nesting ends in a RecursionError, bytes that are no text in a UnicodeDecodeError, which is a ValueError.
    except (ValueError, RecursionError):
        return None
    return tree if isinstance(tree, Mapping) else None


def value_at(tree: object, *keys: str) -> object:
    """Return the value under nested keys; None if one is missing."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def number_at(tree: object, *keys: str) -> float | None:
    """Return the finite number under nested keys; None if there is none."""
    value = value_at(tree, *keys)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # JSON has whole numbers that are too large for a float.
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _count_at(tree: object, *keys: str) -> int | None:
    """Return the whole number of 0 or more under nested keys; None if there is none."""
    value = value_at(tree, *keys)
    # bool is an int, but no count.
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def text_at(tree: object, *keys: str) -> str | None:
    """Return the text under nested keys; None if there is none."""
    value = value_at(tree, *keys)
    return value if isinstance(value, str) else None


def _list_at(tree: object, *keys: str) -> list[Any]:
    """Return the list under nested keys; an empty one if there is none."""
    value = value_at(tree, *keys)
    return value if isinstance(value, list) else []


TOKEN_VARIABLE = "STABLERNN_CLIENT_TOKEN"
SCOPE = (
    "One server process, since it opened this version. Other processes, earlier starts of the server and other servers "
    "are not counted; with several workers it is the process that answered."
)
NOT_READ = "No server was asked: the document was written without --server, so it says nothing about operation."


def read_counts(url: str, version: Version) -> dict[str, Any]:
    """Return the counts of a server for a version, with the time at which they were read.

    Args:
        url: Address of the server. A bearer token is read from :data:`TOKEN_VARIABLE`.
        version: The version, by whose digest that of the server is checked.

    Raises:
        CommandError: If the server does not answer, refuses, or serves another model under the reference.
    """
    from stablernn_client import Client, ClientError
    from stablernn_registry.log import utc_now

    # The token is a secret, which has no place on a command line.
    try:
        with Client(url, token=os.environ.get(TOKEN_VARIABLE) or None) as client:
            parameters = client.metadata(version.ref).get("parameters")
            statistics = client.statistics(version.ref)
    except ClientError as error:
        raise CommandError(
            f"The counts of '{version.ref}' cannot be read from {_without_credentials(url)}: {error} Start the server, "
            f"set {TOKEN_VARIABLE} if it wants a token, or leave out --server."
        ) from error
    # Two registries can have different versions of one name and number.
    if not isinstance(parameters, Mapping) or parameters.get("digest") != version.digest:
        raise CommandError(
            f"The server at {_without_credentials(url)} serves another model as '{version.ref}': its digest differs "
            f"from {version.digest}. Ask a server of this registry, or leave out --server."
        )
    # A server is asked over a network: its answer may have any form.
    states, ranges = value_at(parameters, "state_guard", "states"), value_at(parameters, "input_guard", "ranges")
    counts = next((row for row in statistics if str(row.get("version")) == str(version.version)), {})
    return {
        "read": True,
        "url": _without_credentials(url),
        "time": utc_now(),
        "scope": SCOPE,
        # None without a guard: nothing is compared, and a zero would look like a result.
        "states_outside_ball": _count_at(parameters, "state_guard", "exits") if states else None,
        "samples_outside_range": None if ranges is None else _count_at(parameters, "input_guard", "outside"),
        "guarded_states": states,
        "range": ranges,
        "sequences_and_steps_run": _count_at(counts, "inference_count"),
    }


def check_address(url: str) -> None:
    """Refuse an address that no server can have, or that has a password, which documents and messages would show.

    Raises:
        UsageError: If it is one.
    """
    advice = "Give an address such as http://127.0.0.1:8080"
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if "@" in url:
        raise UsageError(f"--server takes an address without user and password. {advice}, and {TOKEN_VARIABLE}.")
    if not is_address or any(character.isspace() for character in url):
        raise UsageError(f"--server takes an http:// or https:// address, got '{url}'. {advice}.")


def _without_credentials(url: str) -> str:
    """Return an address without the user and the password that it may have: a document is passed on."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
