"""`stablernn certify`: what is proved of a trained model, from its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from stablernn_cli.errors import REFUSED, CommandError
from stablernn_cli.options import KIND_METAVAR, Kind, TargetArgument, complete_kind, parse_kind
from stablernn_cli.output import JsonOption, Output
from stablernn_cli.targets import certified


def certify(
    context: typer.Context,
    target: TargetArgument,
    require: Annotated[
        Kind | None,
        typer.Option(
            parser=parse_kind,
            metavar=KIND_METAVAR,
            autocompletion=complete_kind,
            help="Exit with code 3 unless at least this is proved.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute what is proved of a model's stability

    From the weights, in float64, for all states and inputs: how fast two states under one input approach, in which
    norm, and where states stay. The kinds, from the strongest to the weakest, are contracting, non-expansive, bounded
    and none. docs/stability.md says what each means and how it is proved. Exit code 3: less is proved than --require
    asks for.

    Example: stablernn certify digits@production --require contracting
    """
    from stablernn_registry.documents.certificates import is_as_strong

    output = Output.of(context, as_json)
    with output.status(f"Certifying {target} ..."):
        name, certificate = certified(target)
    if as_json:
        output.document({"target": name, **certificate})
    else:
        show(output, name, certificate)
    if require is not None and not is_as_strong(certificate["kind"], require):
        raise CommandError(
            f"'{require}' is required of {name}, and '{certificate['kind']}' is what is proved. "
            "`stablernn train --certified` keeps a model where more is proved; docs/stability.md says of which cells.",
            REFUSED,
        )


def _time(time: Mapping[str, Any]) -> str | None:
    if time["steps"] == "regular":
        return None
    return f"irregular, steps of up to {time['longest']:.4g} regular ones"


def _gaps(gaps: Sequence[Mapping[str, Any]]) -> str | None:
    known = [f"{gap['output_error']:.4g} after {gap['steps']:,}" for gap in gaps if gap["output_error"] is not None]
    return "samples wrong by 1 move the output by at most " + ", ".join(known) if known else None


def _stored(bound: Mapping[str, float] | None) -> str | None:
    if bound is None:
        return None
    return (
        f"move the output by at most {bound['error']:.3g}, and {bound['error_per_input']:.3g} for each unit of the "
        f"input's norm; rate {bound['rate']:.6g}"
    )


def show(output: Output, name: str, certificate: Mapping[str, Any]) -> None:
    """A certificate for people."""
    from stablernn_registry.documents.certificates import describe_certificate

    balls = [f"{ball['state']} within {ball['radius']:.6g} ({ball['norm']})" for ball in certificate["state_balls"]]
    forgetting = certificate["forgetting"]
    facts = {
        "model": name,
        "cell": certificate["cell"],
        "proved": describe_certificate(certificate),
        "norm": certificate["norm"],
        "contraction rate": certificate["contraction_rate"],
        "time": _time(certificate["time"]),
        "covers": ", ".join(certificate["states"]) or None,
        "stays": "; ".join(balls) or None,
        "gain, input to output": certificate["gains"]["input_to_output"],
        "forgotten": None
        if forgetting["steps"] is None
        else f"all but {forgetting['share']:g} of a difference after {forgetting['steps']:,} steps",
        "a gap": _gaps(certificate["gaps"]),
        **{f"weights in {form}": _stored(bound) for form, bound in certificate["stored_weights"].items()},
    }
    output.facts({word: value for word, value in facts.items() if value is not None})
    columns = ("condition", "value", "at most", "holds")
    if certificate["hypotheses"]:
        output.text()
        output.table(columns, [_row(condition) for condition in certificate["hypotheses"]], title="Hypotheses")
    if certificate["conditions"]:
        output.text()
        rows = [[*_row(condition), condition["of"]] for condition in certificate["conditions"]]
        output.table((*columns, "of"), rows, title="Conditions beside the proof")


def _row(condition: Mapping[str, Any]) -> list[object]:
    return [condition["name"], condition["value"], condition["bound"], "yes" if condition["holds"] else "no"]
