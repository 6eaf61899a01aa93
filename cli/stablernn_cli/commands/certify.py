"""`stablernn certify`: the stability certificate of a trained model, from its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from stablernn_cli.errors import REFUSED, CommandError, UsageError
from stablernn_cli.options import JsonOption, Kind, TargetArgument, option, require_option
from stablernn_cli.output import Output, count_of, drop_none
from stablernn_cli.targets import certify_target, is_run


def certify(
    context: typer.Context,
    target: TargetArgument,
    require: Annotated[Kind | None, require_option("Exit with code 3 unless at least this is proved.")] = None,
    inputs_within: Annotated[
        str | None,
        option(
            "Certify for raw inputs from -R to R, or LOW:HIGH, in the units of the data; one for all features, or "
            "one for each, separated by commas.",
            metavar="R",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        option(
            "Also write a certificate document, .html or .json: claims with hypotheses, observations, history.",
            metavar="FILE",
        ),
    ] = None,
    server: Annotated[
        str | None,
        option(
            "With --report: read the violations that the server at URL has counted for the version; a bearer "
            "token comes from STABLERNN_CLIENT_TOKEN.",
            metavar="URL",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute a model's stability certificate

    From the weights, in float64, for all states and inputs: the rate at which two states under one input approach each
    other, in which norm, and the set that states stay in. The kinds, from the strongest to the weakest, are
    contracting, non-expansive, bounded and none. docs/background/stability.md defines them and shows the proofs. Exit
    code 3: less is proved than --require demands.

    With --inputs-within the certificate is only of inputs in that range, and proves more of cells with gates. Without,
    a second one is for the range seen in training, one and a half times as wide; of networks trained elsewhere, for the
    range of their export.

    With --report a document for assessors is written, which docs/reference/certificate.md describes; print the .html
    from a browser for a PDF.

    Example: stablernn certify digits@production --require contracting
    """
    from stablernn_registry.certificates import is_as_strong

    output = Output.of(context, as_json)
    _check_report(target, report, server)
    with output.status(f"Certifying {target} ..."):
        certified = certify_target(target, inputs_within)
    name, certificate = certified.name, certified.document
    if report is not None:
        from stablernn_cli.report.document import compose_report
        from stablernn_cli.report.page import write_report

        with output.status(f"Writing {report} ..."):
            write_report(report, compose_report(certified, server))
        output.note(f"Wrote {report}.")
    if as_json:
        output.document({"target": name, **certificate})
    else:
        show(output, name, certificate)
    if require is not None and not is_as_strong(certificate["kind"], require):
        # After the certificate is printed: it shows which condition fails.
        raise CommandError(
            f"'{require}' is required of {name}, but only '{certificate['kind']}' is proved. "
            f"{_suggestion(certificate, require)} docs/background/stability.md lists the cells.",
            REFUSED,
        )


def _check_report(target: str, report: Path | None, server: str | None) -> None:
    """Refuse options of the document before the certificate is computed.

    Raises:
        UsageError: If the file cannot be written, or a server is named for nothing that it could count.
    """
    from stablernn_cli.report.observed import check_address
    from stablernn_cli.report.page import check_path

    if report is not None:
        check_path(report)
    if server is None:
        return
    if report is None:
        raise UsageError(f"--server is for --report, got '{server}' without it. Add --report FILE, or leave it out.")
    check_address(server)
    if is_run(target):
        raise UsageError(
            f"--server reads the counts of a registry version, got the run '{target}'. Export the run and name the "
            "version, or leave out --server."
        )


def _time_text(time: Mapping[str, Any]) -> str | None:
    if time.get("resample_steps") is not None:
        return f"steps are those of a sequence resampled to {time['resample_steps']} samples, not of a stream"
    if time["steps"] == "regular":
        return None
    return f"irregular, steps of up to {time['longest']:.4g} regular ones"


def _gap_text(gaps: Sequence[Mapping[str, Any]]) -> str | None:
    from stablernn_registry.certificates import format_upper

    # None for a length without a proved bound.
    bounds = [
        f"{format_upper(gap['output_error'], 4)} after {count_of(gap['steps'], 'step')}"
        for gap in gaps
        if gap["output_error"] is not None
    ]
    return "wrong by 1, they move the output by at most " + ", ".join(bounds) if bounds else None


def _quantization_text(bound: Mapping[str, float] | None) -> str | None:
    from stablernn_registry.certificates import format_upper

    if bound is None:
        return None
    return (
        f"move the output by at most {format_upper(bound['error'], 3)}, and "
        f"{format_upper(bound['error_per_input'], 3)} for each unit of the input's norm; rate "
        f"{format_upper(bound['rate'], 6)}"
    )


def _suggestion(certificate: Mapping[str, Any], require: Kind) -> str:
    """Return what would give a proof of a required kind, as a sentence."""
    from stablernn.cells import create_cell
    from stablernn.certificates.projection import suggest_proof
    from stablernn_registry.certificates import is_as_strong

    bounded = certificate.get("bounded_inputs")
    if bounded is not None and is_as_strong(bounded["kind"], require):
        return "It is proved for the inputs of the second certificate: ask for it with --inputs-within."
    return suggest_proof(create_cell(certificate["cell"], 1, 2))


def _proof_option(certificate: Mapping[str, Any]) -> str | None:
    """Return which option would give a proof; None if one holds for inputs within a range."""
    from stablernn.cells import create_cell
    from stablernn.certificates.projection import is_within_range, suggest_proof

    bounded, cell = certificate.get("bounded_inputs"), create_cell(certificate["cell"], 1, 2)
    if certificate["kind"] != "none" or (bounded is not None and bounded["kind"] != "none"):
        return None
    # A network from elsewhere may have been exported without a range.
    if bounded is None and certificate["inputs"] is None and is_within_range(cell):
        return f"Within a range of inputs, '{cell.key}' may be bounded: name it by --inputs-within."
    return suggest_proof(cell)


def show(output: Output, name: str, certificate: Mapping[str, Any]) -> None:
    """Print a certificate as text."""
    from stablernn_registry.certificates import (
        describe_bounded_inputs,
        describe_certificate,
        format_input_ranges,
        format_upper,
        input_ranges,
    )

    ranges = input_ranges(certificate)
    balls = [
        f"{ball['state']} within {format_upper(ball['radius'], 6)} ({ball['norm']})"
        for ball in certificate["state_balls"]
    ]
    rate, gain = certificate["contraction_rate"], certificate["gains"]["input_to_output"]
    fading = certificate["forgetting"]
    facts = {
        "model": name,
        "cell": certificate["cell"],
        "proved": describe_certificate(certificate),
        "in words": " ".join(filter(None, [*certificate["in_words"], _proof_option(certificate)])),
        "inputs": None if ranges is None else f"only those {format_input_ranges(ranges)}, in the units of the data",
        "bounded inputs": describe_bounded_inputs(certificate),
        "norm": certificate["norm"],
        "contraction rate": None if rate is None else format_upper(rate, 6),
        "time": _time_text(certificate["time"]),
        "covers": ", ".join(certificate["states"]) or None,
        "stays": "; ".join(balls) or None,
        "gain, input to output": None if gain is None else format_upper(gain, 4),
        "forgotten": None
        if fading["steps"] is None or fading["steps"] > certificate["time"].get("resample_steps", math.inf)
        else f"all but {fading['share']:g} of the first bound on a difference after {fading['steps']:,} steps",
        # A gap of raw samples is one of other samples once they are resampled.
        "wrong inputs of the layers": None
        if certificate["time"].get("resample_steps")
        else _gap_text(certificate["gaps"]),
        **{f"weights in {dtype}": _quantization_text(bound) for dtype, bound in certificate["stored_weights"].items()},
    }
    output.facts(drop_none(facts))
    # A proof rests on its hypotheses; the other conditions are reported without a proof that uses them.
    columns = ("condition", "value", "at most", "holds")
    if certificate["hypotheses"]:
        output.text()
        output.table(
            columns, [_condition_row(condition) for condition in certificate["hypotheses"]], title="Hypotheses"
        )
    if certificate["conditions"]:
        output.text()
        rows = [[*_condition_row(condition), condition["of"]] for condition in certificate["conditions"]]
        output.table((*columns, "of"), rows, title="Further conditions")


def _condition_row(condition: Mapping[str, Any]) -> list[object]:
    return [condition["name"], condition["value"], condition["bound"], "yes" if condition["holds"] else "no"]
