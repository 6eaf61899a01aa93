"""`stablernn registry`: the registry of trained models."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.errors import REFUSED, Reported, UsageError
from stablernn_cli.options import JsonOption, Kind, Split, option, require_option
from stablernn_cli.output import Output, count_of, figure, format_names, show_metrics
from stablernn_cli.records import record_document

if TYPE_CHECKING:
    from stablernn_registry import AliasEntry, LogEntry, Policy, PolicyEntry, PolicyRules, Record, Registry, Version

app = typer.Typer(
    help="Manage trained models: versions, aliases, integrity", no_args_is_help=True, add_completion=False
)
policy_app = typer.Typer(help="Set rules for what an alias may point to", no_args_is_help=True, add_completion=False)
app.add_typer(policy_app, name="policy")

logger = logging.getLogger(__name__)

RefArgument = Annotated[
    str, typer.Argument(metavar="REF", help="NAME (the highest version), NAME:VERSION or NAME@ALIAS.")
]
WhyOption = Annotated[str | None, option("Reason, stored in the model's log.")]
ForceOption = Annotated[bool, option("Move the alias even if a check refuses; needs --why.", "--force")]
AliasArgument = Annotated[str, typer.Argument(metavar="NAME@ALIAS", help="The alias and its model.")]


@app.command()
def copy(
    context: typer.Context,
    ref: RefArgument,
    folder: Annotated[Path, option("New or empty folder.", "--output", metavar="FOLDER")],
    files: Annotated[
        list[str] | None,
        option(
            "A file of the version, or manifest.json, may be repeated; default: all of them.", "--file", metavar="NAME"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the files of a version to a folder

    For programs that know no registry, such as one that runs step.onnx on a device. Every byte is checked against its
    hash, and the folder gets all files or none. manifest.json has the order of features and labels.

    Example: stablernn registry copy digits@production --output digits-files --file step.onnx --file manifest.json
    """
    from stablernn_registry import Registry
    from stablernn_registry.copies import extract_files

    output = Output.of(context, as_json)
    version = Registry().get(ref)
    names = extract_files(version, folder, files or None)
    if as_json:
        output.document({"ref": version.ref, "digest": version.digest, "folder": str(folder), "files": names})
    else:
        output.note(f"Copied {count_of(len(names), 'file')} of {version.ref} to {folder}: {', '.join(names)}.")


@app.command("list")
def list_(context: typer.Context, as_json: JsonOption = False) -> None:
    """List models, versions and aliases

    Example: stablernn registry list
    """
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    registry = Registry()
    models = registry.list()
    if as_json:
        output.document(
            [{"name": model.name, "versions": model.versions, "aliases": model.aliases} for model in models]
        )
        return
    output.table(
        ("name", "versions", "aliases"),
        [
            [
                model.name,
                ", ".join(map(str, model.versions)),
                ", ".join(f"{alias} -> {version}" for alias, version in sorted(model.aliases.items())),
            ]
            for model in models
        ],
    )
    output.note(f"Registry: {registry.root}" + ("" if models else " (empty)"))


@app.command()
def show(context: typer.Context, ref: RefArgument, as_json: JsonOption = False) -> None:
    """Show one version: files, metrics, lineage, records

    Example: stablernn registry show digits@production
    """
    from stablernn_registry import Registry
    from stablernn_registry.certificates import describe_bounded_inputs, describe_certificate

    output = Output.of(context, as_json)
    registry = Registry()
    version = registry.get(ref)
    records = registry.records(f"{version.name}:{version.version}")
    document = version_document(version, records)
    if as_json:
        output.document(document)
        return
    manifest = version.manifest
    lineage = manifest.lineage
    bounded = describe_bounded_inputs(manifest.certificate)
    output.facts(
        {
            "digest": version.digest,
            "created": manifest.created,
            "aliases": ", ".join(version.aliases) or "-",
            "task": manifest.task,
            "cell": manifest.cell,
            "data": (lineage.get("data") or {}).get("name", "-"),
            "features": format_names(manifest.features or ()),
            **({"labels": format_names(manifest.labels)} if manifest.labels else {}),
            **({"targets": format_names(manifest.targets)} if manifest.targets else {}),
            **({"horizon": f"{manifest.horizon} steps"} if manifest.horizon else {}),
            "parity": f"max relative error {figure(manifest.parity.get('max_rel_error'))}",
            "certificate": describe_certificate(manifest.certificate),
            **({"bounded inputs": bounded} if bounded is not None else {}),
        },
        title=version.ref,
    )
    show_metrics(output, manifest.metrics)
    _show_robustness(output, version, records)
    output.text()
    output.table(("file", "bytes", "path"), [[n, f["bytes"], f["path"]] for n, f in document["files"].items()])
    # Reports that were attached after publication; the files above never change.
    if records:
        output.text()
        rows = [
            [record["kind"], record["time"], record["who"], name, file["bytes"], file["path"]]
            for record in document["records"]
            for name, file in record["files"].items()
        ]
        output.table(("record", "time", "who", "file", "bytes", "path"), rows, title="Recorded since")


@app.command()
def alias(
    context: typer.Context,
    target: AliasArgument,
    version: Annotated[
        str | None,
        typer.Argument(metavar="VERSION", help="Number of the version.", show_default=False),
    ] = None,
    why: WhyOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Point an alias to a version

    The registry's policy must allow it (`stablernn registry policy show`), the version must have a better score than
    the trivial answer on data that it was not fitted on, every file must be as it was published, certificate and
    parity, recomputed from the version's files, must match the stored ones, and the graphs the manifest. Exit code 3:
    one of these checks refused, and the alias was not moved. With --force it is moved anyway; the log records the
    failed checks and the reason.

    Example: stablernn registry alias digits@production 3 --why "98.6 % on the test split"
    """
    from stablernn_cli.promotion_checks import promotion_checks
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    registry = Registry()
    name, alias_name, number = _parse_alias_and_version(registry, target, version)
    _check_force(force, why)
    # The registry applies its policy; the other checks run here, since they need torch and ONNX Runtime.
    with output.status(f"Checking {name}:{number} ..."):
        checks = promotion_checks(registry, alias_name)
        entry = registry.set_alias(name, alias_name, number, why=why, force=force, checks=checks)
    _report_move(output, name, entry)


@app.command()
def rollback(
    context: typer.Context,
    target: AliasArgument,
    why: WhyOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Point an alias back to its previous version

    Each further rollback goes one move further back. The previous version is checked as by `stablernn registry alias`.
    Exit code 3: a check refused, and the alias was not moved.

    Example: stablernn registry rollback digits@production --why "errors on the night shift"
    """
    from stablernn_cli.promotion_checks import promotion_checks
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    name, alias_name = _parse_alias(target)
    _check_force(force, why)
    registry = Registry()
    with output.status("Checking the previous version ..."):
        checks = promotion_checks(registry, alias_name)
        entry = registry.rollback(name, alias_name, why=why, force=force, checks=checks)
    _report_move(output, name, entry)


@app.command()
def log(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a model.")],
    as_json: JsonOption = False,
) -> None:
    """Print the log of a model, oldest entry first

    Example: stablernn registry log digits
    """
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    entries = Registry().log(name)
    if as_json:
        output.document([entry.model_dump(mode="json") for entry in entries])
        return
    output.table(
        ("time", "who", "what", "why"),
        [[entry.time, entry.who, _format_event(entry), entry.why or ""] for entry in entries],
    )


@app.command()
def verify(
    context: typer.Context,
    ref: Annotated[
        str | None,
        typer.Argument(metavar="[REF]", help="A version; default: every byte of the registry.", show_default=False),
    ] = None,
    recompute: Annotated[bool, option("Also recompute certificate and parity, and compare.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every byte against its hash

    With a reference: that version, its records and the registry's own files. With --recompute, the certificate of a
    version and the parity between its graphs and its weights are computed again from its files; the certificate must
    match the stored one, the parity must be within its bounds, and the graphs must have the inputs, outputs and states
    of the manifest. Exit code 3: something differs.

    Example: stablernn registry verify digits@production
    """
    from stablernn_registry import Registry

    output = Output.of(context, as_json)
    registry = Registry()
    # Without torch nothing can be recomputed: one error now, instead of a problem for every version.
    if recompute and importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    with output.status("Reading and hashing every file ..."):
        report = registry.verify(ref)
    document: dict[str, Any] = {
        "ref": report.ref,
        "ok": report.ok,
        "checked": report.checked,
        "problems": list(report.problems),
        "notes": list(report.notes),
    }
    if recompute:
        _recompute(output, registry, ref, document)
    if as_json:
        output.document(document)
    else:
        for problem in document["problems"]:
            output.text(f"problem: {problem}")
        for note in document["notes"]:
            output.text(f"note: {note}")
        versions = count_of(len(document.get("recomputed", ())), "version")
        recomputed = f", {versions} recomputed" if recompute else ""
        problems = count_of(len(document["problems"]), "problem")
        verdict = "everything is as it was published" if document["ok"] else problems
        output.text(f"{report.ref}: {report.checked} files read{recomputed}, {verdict}.")
    if not document["ok"]:
        raise Reported(REFUSED)


def _recompute(output: Output, registry: Registry, ref: str | None, document: dict[str, Any]) -> None:
    """Add to the document of ``verify`` what differs when it is recomputed."""
    from stablernn_cli.promotion_checks import run_checks
    from stablernn_registry import IntegrityError

    document["recomputed"] = []
    # Listing all versions reads every log; a damaged one does not prevent the check of a named version.
    try:
        refs = [ref] if ref else [f"{model.name}:{number}" for model in registry.list() for number in model.versions]
    except IntegrityError:
        document["notes"].append("Nothing was recomputed, since a log is damaged; name a version of another model.")
        return
    for text in refs:
        try:
            version = registry.get(text)
            with output.status(f"Recomputing certificate and parity of {version.ref} ..."):
                results = [*run_checks("recomputed", registry, version), *run_checks("signature", registry, version)]
        except IntegrityError:
            # The verification before has listed it as a problem.
            continue
        details = dict(zip(("certificate", "parity", "signature"), (result.detail for result in results), strict=True))
        document["recomputed"].append({"ref": version.ref, **details})
        document["problems"] += [f"'{version.ref}': {res.name}: {res.detail}." for res in results if not res.ok]
    document["ok"] = not document["problems"]


def _show_robustness(output: Output, version: Version, records: Sequence[Record]) -> None:
    """Print the main figures of the report that was published with the version, and of its latest record."""
    from stablernn_registry import RobustnessReport
    from stablernn_registry.reports import ROBUSTNESS

    sources: dict[str, Version | Record] = {"": version} if ROBUSTNESS in version.manifest.files else {}
    recorded = [record for record in records if ROBUSTNESS in record.entry.files]
    if recorded:
        sources[f", recorded {recorded[-1].entry.time}"] = recorded[-1]
    for suffix, source in sources.items():
        # None for a report of a format that this version of stablernn cannot read.
        report = RobustnessReport.parse(source.read(ROBUSTNESS))
        if report is not None:
            output.text()
            output.facts(report.figures(), title=f"Robustness on {report.sample}{suffix}")


def version_document(version: Version, records: Sequence[Record]) -> dict[str, Any]:
    """Return a version with its records, as ``registry show --json`` prints it.

    The certificate in ``manifest`` is the one that counts today: a kind that was withdrawn since is replaced.
    """
    from stablernn_registry.certificates import current_certificate

    manifest = version.manifest.model_dump(mode="json")
    return {
        "name": version.name,
        "version": version.version,
        "digest": version.digest,
        "aliases": list(version.aliases),
        "files": {
            filename: {"bytes": entry.bytes, "sha256": entry.sha256, "path": str(version.path(filename))}
            for filename, entry in version.manifest.files.items()
        },
        "manifest": {**manifest, "certificate": current_certificate(manifest["certificate"])},
        "records": [record_document(record) for record in records],
    }


def _parse_alias_and_version(registry: Registry, target: str, version: str | None) -> tuple[str, str, int]:
    """Parse the two arguments of ``registry alias``.

    Raises:
        UsageError: If they are not NAME@ALIAS and a number; the message shows a command that would work.
    """
    from stablernn_registry import RegistryError, parse_ref
    from stablernn_registry.refs import is_name

    # isdigit alone accepts digits of other scripts.
    if version is not None and version.isascii() and version.isdigit():
        name, alias = _parse_alias(target)
        return name, alias, int(version)
    ref = parse_ref(target)
    # If a space was typed instead of the @, the alias is the second argument.
    alias = ref.alias or (version if version and is_name(version) else "production")
    # Only an example: a model that does not exist yet gets 1.
    try:
        number = ref.version or registry.resolve(ref.name)
    except RegistryError:
        number = 1
    got = f"'{target}' without a version" if version is None else f"'{target} {version}'"
    raise UsageError(
        f"'stablernn registry alias' takes NAME@ALIAS and the number of a version, got {got}. "
        f"For example: 'stablernn registry alias {ref.name}@{alias} {number}'."
    )


def _parse_alias(target: str) -> tuple[str, str]:
    from stablernn_registry import parse_ref

    ref = parse_ref(target)
    if ref.alias is None:
        raise UsageError(f"An alias is written NAME@ALIAS, got '{target}'. For example: '{ref.name}@production'.")
    return ref.name, ref.alias


def _check_force(force: bool, why: str | None) -> None:
    # The log must state why a check was overruled.
    if force and not (why and why.strip()):
        raise UsageError("--force needs a reason, got none. Add --why '...'.")


def _report_move(output: Output, name: str, entry: AliasEntry) -> None:
    document = {"name": name, **entry.model_dump(mode="json")}
    if output.as_json:
        output.document(document)
    else:
        previous = document["from"]
        change = "new" if previous is None else f"was {previous}"
        output.text(f"{name}@{document['alias']} -> version {document['to']} ({change}){_format_refusals(entry)}.")


def _format_event(entry: LogEntry) -> str:
    if entry.action == "publish":
        return f"publish version {entry.version}"
    if entry.action == "record":
        return f"record {entry.kind} of version {entry.version}"
    # The other entries are moves of an alias.
    previous = "nothing" if entry.from_version is None else entry.from_version
    return f"{entry.action} {entry.alias}: {previous} -> {entry.to_version}{_format_refusals(entry)}"


def _format_refusals(entry: AliasEntry) -> str:
    """Return the checks that a forced move went past, as the end of a sentence."""
    refused = ", ".join(check.name for check in entry.checks if not check.ok)
    return f" (forced past: {refused})" if entry.forced else ""


# Values of --clear: the rules by their option, and all of them.
_RULES = ("kind", "inputs-within", "max-parity", "metric", "model-signature", "all")


@policy_app.command("show")
def show_policy(context: typer.Context, as_json: JsonOption = False) -> None:
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
    _print_policy(output, policy)
    output.note(f"Registry: {registry.root}")


@policy_app.command("set")
def set_(
    context: typer.Context,
    why: Annotated[str, option("Reason, stored with the rules.")],
    alias: Annotated[
        str, typer.Option(metavar="ALIAS", help="The alias; * stands for all that have no rules of their own.")
    ] = "*",
    require: Annotated[Kind | None, require_option("Weakest accepted kind of certificate.")] = None,
    inputs_within: Annotated[
        str | None,
        option(
            "Require that kind only of raw inputs from -R to R, or LOW:HIGH, as certify takes them; the range "
            "that the version is certified for must hold it.",
            metavar="R",
        ),
    ] = None,
    max_parity: Annotated[
        float | None,
        option("Largest accepted max_rel_error of parity.", min=0),
    ] = None,
    metric: Annotated[
        str | None,
        option("Metric that must not get worse, such as accuracy; needs --worse-by.", metavar="NAME"),
    ] = None,
    worse_by: Annotated[
        float | None,
        option("Allowed loss compared with the version that the alias points to now.", min=0),
    ] = None,
    split: Annotated[Split | None, typer.Option(help="Split of the metric.", show_default="test")] = None,
    better: Annotated[
        Literal["higher", "lower"] | None,
        option("Direction of improvement; default: known for common metrics."),
    ] = None,
    model_signature: Annotated[
        bool,
        option("The graphs must exist, with the inputs, outputs, states and labels of the manifest."),
    ] = False,
    clear: Annotated[
        list[str] | None,
        option(
            "Drop kind, inputs-within, max-parity, metric or model-signature, may be repeated; all: the rules of "
            "* apply again.",
            metavar="RULE",
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
    _check_changes(changes, dropped, why)
    entry, policy = _change_policy(alias, changes, dropped, why)
    if as_json:
        output.document(_entry_document(entry, policy))
    else:
        _print_policy(output, policy)


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


def _check_changes(changes: Mapping[str, Any], dropped: AbstractSet[str], why: str) -> None:
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
    from stablernn_registry.certificates import WITHDRAWN_KIND

    stored = {"stored_kind": WITHDRAWN_KIND} if entry.seq in policy.withdrawn else {}
    return {**entry.model_dump(mode="json", exclude={"previous"}), **stored}


def _print_policy(output: Output, policy: Policy) -> None:
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
        from stablernn_registry.certificates import format_input_ranges

        within = rules.inputs_within
        kind += f" for inputs {format_input_ranges(list(zip(within.lower, within.upper, strict=True)))}"
    parity = f"{figure(rules.max_parity)} at most" if rules and rules.max_parity is not None else "-"
    metric = "-"
    if rules and rules.metric:
        rule = rules.metric
        metric = f"{rule.name} on {rule.split}: {figure(rule.worse_by)} worse at most ({rule.better} is better)"
    return kind, parity, metric, "must match the graphs" if rules and rules.model_signature else "-"
