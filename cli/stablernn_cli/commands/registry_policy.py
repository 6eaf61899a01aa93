"""`stablernn registry policy`: rules for what an alias may point to."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.errors import UsageError
from stablernn_cli.options import JsonOption, PolicyInputsOption, PolicyRequireOption, Split
from stablernn_cli.output import Output, figure

if TYPE_CHECKING:
    from stablernn_registry import Policy, PolicyEntry, PolicyRules

app = typer.Typer(help="Set rules for what an alias may point to", no_args_is_help=True, add_completion=False)

logger = logging.getLogger(__name__)

# Values of --clear: the rules by their option, and all of them.
_RULES = ("kind", "inputs-within", "max-parity", "metric", "model-signature", "all")


@app.command()
def show(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show what each alias may point to

    Rules for `*` apply to every alias that has none of its own, in every model of the registry. With --json, earlier
    rules are included. A rule that was stored with the withdrawn kind `local` requires `bounded`, and a warning is
    printed; with --json its line has `stored_kind`.

    Example: stablernn registry policy show
    """
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    registry = Registry()
    policy = registry.policy()
    for message in policy.warnings():
        logger.warning(message)
    if as_json:
        output.document(
            {
                "registry": str(registry.root),
                "policy": {alias: _entry_document(entry, policy) for alias, entry in policy.in_force.items()},
                "history": [_entry_document(entry, policy) for entry in policy.entries],
            }
        )
        return
    _show(output, policy)
    output.note(f"Registry: {registry.root}")


@app.command("set")
def set_(
    context: typer.Context,
    why: Annotated[str, typer.Option(help="Reason, stored with the rules.", show_default=False)],
    alias: Annotated[
        str, typer.Option(metavar="ALIAS", help="The alias; * stands for all that have no rules of their own.")
    ] = "*",
    require: PolicyRequireOption = None,
    inputs_within: PolicyInputsOption = None,
    max_parity: Annotated[
        float | None,
        typer.Option(min=0, help="Largest accepted max_rel_error of parity.", show_default=False),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Metric that must not get worse, such as accuracy; needs --worse-by.",
            show_default=False,
        ),
    ] = None,
    worse_by: Annotated[
        float | None,
        typer.Option(
            min=0, help="Allowed loss compared with the version that the alias points to now.", show_default=False
        ),
    ] = None,
    split: Annotated[Split | None, typer.Option(help="Split of the metric.", show_default="test")] = None,
    better: Annotated[
        Literal["higher", "lower"] | None,
        typer.Option(help="Direction of improvement; default: known for common metrics.", show_default=False),
    ] = None,
    model_signature: Annotated[
        bool,
        typer.Option(
            "--model-signature",
            help="The graphs must exist, with the inputs, outputs, states and labels of the manifest.",
        ),
    ] = False,
    clear: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Drop kind, inputs-within, max-parity, metric or model-signature, may be repeated; all: the rules of "
            "* apply again.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set or drop rules for an alias

    Rules that are not named stay as they are; an alias without rules of its own starts with those of `*`. No alias is
    moved: rules apply to the next move, by `stablernn registry alias`, `rollback`, `stablernn export --alias` and by
    Python.

    Example: stablernn registry policy set --alias production --require contracting --why "runs unattended"
    """
    output = Output.of(context, as_json)
    changes: dict[str, Any] = {} if require is None else {"kind": require}
    if inputs_within is not None:
        from stablernn.certificates.input_range import InputRange

        changes["inputs_within"] = InputRange.parse(inputs_within).document()
    if model_signature:
        changes["model_signature"] = True
    if max_parity is not None:
        changes["max_parity"] = max_parity
    metric_rule = _metric_rule(metric, worse_by, split, better)
    if metric_rule is not None:
        changes["metric"] = metric_rule
    # Fields that are dropped become None, which requires nothing.
    dropped = _parse_dropped(clear or ())
    _check(changes, dropped, why)
    entry, policy = _change_policy(alias, changes, dropped, why)
    if as_json:
        output.document(_entry_document(entry, policy))
    else:
        _show(output, policy)


def _metric_rule(
    metric: str | None, worse_by: float | None, split: str | None, better: str | None
) -> dict[str, Any] | None:
    """Return the rule of ``--metric`` and the options that belong to it, or None without it.

    Raises:
        UsageError: If an option is there without ``--metric``, or one that it needs is missing.
    """
    if metric is None:
        for option, value in (("--worse-by", worse_by), ("--split", split), ("--better", better)):
            if value is not None:
                raise UsageError(f"{option} goes with --metric, got it alone. Add --metric NAME.")
        return None
    if worse_by is None:
        raise UsageError(
            f"--metric {metric} needs --worse-by, the allowed loss compared with the version that the alias points to "
            "now; 0 allows none."
        )
    return {"name": metric, "split": split or "test", "worse_by": worse_by, "better": better or _direction(metric)}


def _parse_dropped(names: Sequence[str]) -> set[str]:
    """Return the fields of the rules to drop, from the values of ``--clear``."""
    for name in names:
        if name not in _RULES:
            raise UsageError(f"--clear must be one of {', '.join(_RULES)}, got '{name}'.")
    return {name.replace("-", "_") for name in names}


def _change_policy(
    alias: str, changes: Mapping[str, Any], dropped: AbstractSet[str], why: str
) -> tuple[PolicyEntry, Policy]:
    """Write the new rules of an alias, and return their line and the policy with it.

    Raises:
        UsageError: If a rule is wrong, or there are none to drop.
    """
    from stablernn_registry import PolicyError, PolicyRules, Registry

    registry = Registry()
    policy = registry.policy()
    # None withdraws all rules of the alias, so that those of * apply again.
    rules = None
    if "all" not in dropped:
        try:
            # The rules in force for the alias, without the dropped ones, with the changes.
            rules = PolicyRules.parse({**policy.rules(alias).model_dump(), **dict.fromkeys(dropped), **changes})
        except PolicyError as error:
            raise UsageError(str(error)) from error
    elif alias not in policy.in_force:
        raise UsageError(f"'{alias}' has no rules of its own to drop. See `stablernn registry policy show`.")
    entry = registry.set_policy(rules, alias=alias, why=why)
    return entry, registry.policy()


def _check(changes: Mapping[str, Any], dropped: AbstractSet[str], why: str) -> None:
    """Reject changes that are empty or contradict each other.

    Raises:
        UsageError: If they do.
    """
    if not changes and not dropped:
        raise UsageError(
            "A policy needs a rule, got none. Add --require KIND, --inputs-within R, --max-parity X, --metric NAME "
            "--worse-by Y, --model-signature or --clear RULE."
        )
    if both := dropped & changes.keys():
        rule = min(both).replace("_", "-")
        raise UsageError(f"The rule '{rule}' is both set and dropped. Leave out one of the two.")
    if "all" in dropped and (changes or len(dropped) > 1):
        raise UsageError("--clear all drops every rule of the alias. Leave out the other rules.")
    if not why.strip():
        raise UsageError("--why needs a reason, got none. State why the rules are as they are.")


def _direction(metric: str) -> str:
    """Return the direction of improvement of a metric that has one and is in the catalog."""
    from stablernn.training.evaluation.metric_catalog import direction

    better = direction(metric)
    if better is None:
        raise UsageError(
            f"The direction of improvement of '{metric}' is not known. Add --better higher or --better lower."
        )
    return better


def _entry_document(entry: PolicyEntry, policy: Policy) -> dict[str, Any]:
    """Return a line of the policy as ``--json`` prints it, without the hash that chains it to the line before."""
    from stablernn_registry.documents.certificates import WITHDRAWN_KIND

    stored = {"stored_kind": WITHDRAWN_KIND} if entry.seq in policy.withdrawn else {}
    return {**entry.model_dump(mode="json", exclude={"previous"}), **stored}


def _show(output: Output, policy: Policy) -> None:
    # Aliases whose rules were withdrawn are not in force.
    if not policy.in_force:
        output.text("There is no policy: an alias may point to any version.")
        return
    output.table(
        ("alias", "certificate", "parity", "metric", "model signature", "since", "who", "why"),
        [[alias, *_cells(entry.rules), entry.time, entry.who, entry.why] for alias, entry in policy.in_force.items()],
    )


def _cells(rules: PolicyRules | None) -> tuple[str, str, str, str]:
    """Return the rules as text: certificate, parity, metric and model signature."""
    kind = f"{rules.kind} or stronger" if rules and rules.kind else "-"
    if rules and rules.inputs_within:
        from stablernn_registry.documents.certificates import format_input_ranges

        within = rules.inputs_within
        kind += f" for inputs {format_input_ranges(list(zip(within.lower, within.upper, strict=True)))}"
    parity = f"{figure(rules.max_parity)} at most" if rules and rules.max_parity is not None else "-"
    metric = "-"
    if rules and rules.metric:
        rule = rules.metric
        metric = f"{rule.name} on {rule.split}: {figure(rule.worse_by)} worse at most ({rule.better} is better)"
    return kind, parity, metric, "must match the graphs" if rules and rules.model_signature else "-"
