"""The section of a certificate document about release and operation: history, policy, and counted violations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablernn_cli.report.html_parts import Markup, badge, element, facts, join, plain_text, table


def operation_section(document: Mapping[str, Any]) -> Markup:
    """Return the section."""
    history = document["history"]
    return element(
        "section",
        element("h2", "C. Release and operation"),
        element("h3", "Publication and promotion"),
        _no_history() if history is None else _history(history),
        element("h3", badge("observed"), "Violations counted in operation"),
        _violations(document["violations"]),
    )


def _no_history() -> Markup:
    return element("p", "None: a run directory is not published, so it has no digest, no promotion and no records.")


def _history(history: Mapping[str, Any]) -> Markup:
    published, aliases = history["published"], history["aliases"]
    text = (
        "Publication is not in the log."
        if published is None
        else (
            f"Published {published['time']} by {published['who']}"
            + (f": {published['why']}" if published["why"] else "")
            + f" (line {published['log_line']} of the log)."
        )
    )
    now = (
        f"Aliases that point to this version now: {', '.join(aliases)}."
        if aliases
        else ("No alias points to this version now.")
    )
    # Moves away from the version are listed as well: they end its release.
    moves = history["moves"]
    if not moves:
        return element("p", f"{text} {now} No alias was ever moved to it.")
    return join(element("p", f"{text} {now}"), *(_move(move) for move in moves))


def _move(move: Mapping[str, Any]) -> Markup:
    policy = move["policy"]
    origin = "" if move["from"] is None else f" from version {move['from']}"
    # Moves from before there was a policy have no checks.
    rows: dict[str, object] = {
        "move": f"{move['alias']}{origin} to version {move['to']} ({move['action']}, line {move['log_line']})",
        "when": move["time"],
        "who": move["who"],
        "why": move["why"] or "no reason was given",
        "forced": "yes: the policy or a check refused, and the move was forced" if move["forced"] else None,
        "policy": _policy_text(policy) if move["checks"] or policy else None,
    }
    checks = [
        [check["name"], "passed" if check["ok"] else element("span", "REFUSED", class_="no"), check["detail"]]
        for check in move["checks"]
    ]
    return join(facts(rows), table(("check before the move", "result", "detail"), checks) if checks else "")


def _policy_text(policy: Mapping[str, Any] | None) -> str:
    if policy is None:
        return "no rules applied to this alias"
    rules = "; ".join(f"{name}: {plain_text(value)}" for name, value in policy["rules"].items())
    return (
        f"line {policy['policy_line']} of the policy, for '{policy['alias']}', set {policy['time']} by "
        f"{policy['who']} ({policy['why']}): {rules or 'no rule'}"
    )


def _violations(violations: Mapping[str, Any]) -> Markup:
    if not violations["read"]:
        return element("p", violations["note"])
    no_ball = "not counted: the version has no certified ball"
    no_range = "not counted: the version has no certified range"
    states, samples = violations["states_outside_ball"], violations["samples_outside_range"]
    return join(
        facts(
            {
                "states outside their ball": no_ball if states is None else states,
                "samples outside the range": no_range if samples is None else samples,
                "sequences and steps run": violations["sequences_and_steps_run"],
                "read from": f"{violations['url']}, {violations['time']}",
                "scope": violations["scope"],
            }
        ),
        element(
            "p",
            "A state outside its ball contradicts the certificate and must be investigated. A sample outside the range "
            "contradicts nothing: the certificate within the range does not apply to its sequence.",
            class_="note",
        ),
    )
