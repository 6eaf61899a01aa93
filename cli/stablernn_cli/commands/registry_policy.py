"""`stablernn registry policy`: what an alias may point to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.errors import UsageError
from stablernn_cli.options import KIND_METAVAR, Kind, Split, complete_kind, parse_kind
from stablernn_cli.output import JsonOption, Output, figure
from stablernn_cli.usage import folded

if TYPE_CHECKING:
    from stablernn_registry import Policy, PolicyEntry, PolicyRules

app = typer.Typer(help="Say what an alias may point to", no_args_is_help=True)

logger = logging.getLogger(__name__)

_RULES = ("kind", "max-parity", "metric", "model-signature", "all")
_HIGHER = frozenset({"accuracy", "macro_f1", "roc_auc"})
_LOWER = frozenset(
    {"log_loss", "ece", "mse", "mae", "rmse", "mase", "smape", "wape", "crps", "bpc", "perplexity", "nll", "loss"}
)


@app.command()
def show(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show what each alias may point to

    Rules for `*` are for every alias that has none of its own, in every model of the registry. With --json the earlier
    rules are there, too. A rule that was stored with the withdrawn kind `local` asks for `bounded`, and a warning says
    so; with --json its line has `stored_kind`.

    Example: stablernn registry policy show
    """
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    registry = Registry()
    policy = registry.policy()
    for sentence in policy.warnings():
        logger.warning(sentence)
    if as_json:
        output.document(
            {
                "registry": str(registry.root),
                "policy": {alias: _document(entry, policy) for alias, entry in policy.in_force.items()},
                "history": [_document(entry, policy) for entry in policy.entries],
            }
        )
        return
    _show(output, policy)
    output.note(f"Registry: {registry.root}")


@app.command("set")
def set_(
    context: typer.Context,
    why: Annotated[str, typer.Option(help="Reason, kept with the rules.", show_default=False)],
    alias: Annotated[
        str, typer.Option(metavar="ALIAS", help="The alias; * is every one that has no rules of its own.")
    ] = "*",
    require: Annotated[
        Kind | None,
        typer.Option(
            parser=parse_kind,
            metavar=KIND_METAVAR,
            autocompletion=complete_kind,
            help="The weakest kind of certificate that will do.",
            show_default=False,
        ),
    ] = None,
    max_parity: Annotated[
        float | None,
        typer.Option(min=0, help="The largest max_rel_error of parity that will do.", show_default=False),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A figure that must not get worse, such as accuracy; needs --worse-by.",
            show_default=False,
        ),
    ] = None,
    worse_by: Annotated[
        float | None,
        typer.Option(min=0, help="By how much it may be worse than where the alias points now.", show_default=False),
    ] = None,
    split: Annotated[Split | None, typer.Option(help="The split it was measured on.", show_default="test")] = None,
    better: Annotated[
        Literal["higher", "lower"] | None,
        typer.Option(help="Which is better; known of the common figures.", show_default=False),
    ] = None,
    model_signature: Annotated[
        bool,
        typer.Option(
            "--model-signature",
            help="The graphs must be there, with the inputs, outputs, states and labels that the manifest says.",
        ),
    ] = False,
    clear: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Drop kind, max-parity, metric or model-signature, may be repeated; all: the rules of * count again.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set or drop rules for an alias

    Rules that are not named stay as they are; those of an alias that has none of its own yet begin as those of `*`.
    Aliases are not moved by this: rules are for the next move. `stablernn registry alias`, `rollback` and
    `stablernn export --alias` obey them, as does Python.

    Example: stablernn registry policy set --alias production --require contracting --why "runs unattended"
    """
    from stablernn_registry import PolicyError, PolicyRules, Registry

    output = Output.of(context, as_json)
    if metric is None:
        for option, value in (("--worse-by", worse_by), ("--split", split), ("--better", better)):
            if value is not None:
                raise UsageError(f"{option} goes with --metric, got it alone. Add --metric NAME.")
    changes: dict[str, Any] = {} if require is None else {"kind": require}
    if model_signature:
        changes["model_signature"] = True
    if max_parity is not None:
        changes["max_parity"] = max_parity
    if metric is not None:
        changes["metric"] = {
            "name": metric,
            "split": split or "test",
            "worse_by": _worse_by(metric, worse_by),
            "better": better or _better(metric),
        }
    for word in clear or ():
        if word not in _RULES:
            raise UsageError(f"--clear must be one of {', '.join(_RULES)}, got '{word}'.")
    dropped = {word.replace("-", "_") for word in clear or ()}
    _check(changes, dropped, why)

    registry = Registry()
    policy = registry.policy()
    rules = None
    if "all" not in dropped:
        try:
            rules = PolicyRules.parse({**policy.rules(alias).model_dump(), **dict.fromkeys(dropped), **changes})
        except PolicyError as error:
            raise UsageError(str(error)) from error
    elif alias not in policy.in_force:
        raise UsageError(f"'{alias}' has no rules of its own to drop. See `stablernn registry policy show`.")
    entry = registry.set_policy(rules, alias=alias, why=why)
    if as_json:
        output.document(_document(entry, registry.policy()))
    else:
        _show(output, registry.policy())


def _check(changes: Mapping[str, Any], dropped: AbstractSet[str], why: str) -> None:
    if not changes and not dropped:
        raise UsageError(
            "A policy needs a rule, got none. Add --require KIND, --max-parity X, --metric NAME --worse-by Y, "
            "--model-signature or --clear RULE."
        )
    if both := dropped & changes.keys():
        word = min(both).replace("_", "-")
        raise UsageError(f"The rule '{word}' is both set and dropped. Leave out one of the two.")
    if "all" in dropped and (changes or len(dropped) > 1):
        raise UsageError("--clear all drops every rule of the alias. Leave out the other rules.")
    if not why.strip():
        raise UsageError("--why needs a reason, got none. Say why the rules are as they are.")


def _worse_by(metric: str, given: float | None) -> float:
    if given is None:
        raise UsageError(
            f"--metric {metric} needs --worse-by, by how much it may be worse than where the alias points now; "
            "0 allows no step back."
        )
    return given


def _better(metric: str) -> str:
    if metric in _HIGHER:
        return "higher"
    if metric in _LOWER or metric.startswith("pinball_"):
        return "lower"
    raise UsageError(
        f"Whether more or less of '{metric}' is better is not known. Add --better higher or --better lower."
    )


def _document(entry: PolicyEntry, policy: Policy) -> dict[str, Any]:
    from stablernn_registry.documents.certificates import WITHDRAWN_KIND

    stored = {"stored_kind": WITHDRAWN_KIND} if entry.seq in policy.withdrawn else {}
    return {**entry.model_dump(mode="json", exclude={"previous"}), **stored}


def _show(output: Output, policy: Policy) -> None:
    if not policy.in_force:
        output.text("There is no policy: an alias may point to any version.")
        return
    output.table(
        ("alias", "certificate", "parity", "metric", "model signature", "since", "who", "why"),
        [[alias, *_cells(entry.rules), entry.time, entry.who, entry.why] for alias, entry in policy.in_force.items()],
    )


def _cells(rules: PolicyRules | None) -> tuple[str, str, str, str]:
    """What is asked of certificate, parity, metric and model signature."""
    kind = f"{rules.kind} or stronger" if rules and rules.kind else "-"
    parity = f"{figure(rules.max_parity)} at most" if rules and rules.max_parity is not None else "-"
    metric = "-"
    if rules and rules.metric:
        one = rules.metric
        metric = f"{one.name} on {one.split}: {figure(one.worse_by)} worse at most ({one.better} is better)"
    return kind, parity, metric, "must fit the graphs" if rules and rules.model_signature else "-"


for _command in app.registered_commands:
    if _command.callback is not None:
        _command.help = folded(_command.callback)
