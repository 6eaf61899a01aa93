"""The claims of a certificate: each with its number, unit and norm, proved or not, and the method of the proof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from stablernn_registry.certificates import format_input_ranges, input_ranges

if TYPE_CHECKING:
    from stablernn.bounds.step_bound import StepBound
    from stablernn.cells import StableCell
    from stablernn.certificates.certificate import Certificate
    from stablernn.nn.models import SequenceModel


def certificate_entry(certificate: Certificate, model: SequenceModel) -> dict[str, Any]:
    """Return a certificate with its claims, hypotheses and methods as JSON types.

    Args:
        certificate: The certificate, as computed.
        model: Its model.
    """
    document = certificate.document()
    return {
        "scope": "all inputs" if certificate.inputs is None else "inputs within a range",
        "range": document["inputs"],
        **{key: document[key] for key in ("kind", "holds", "norm")},
        "layers": max(len(stack.bounds) for stack in certificate.stacks),
        **{key: document[key] for key in ("contraction_rate", "step_rate", "rounding_slack", "time")},
        "claims": _claims(certificate, document, state_labels(model)),
        "assumptions": _assumptions(certificate, document),
        "hypotheses": [_with_slack(condition) for condition in document["hypotheses"]],
        # Conditions of papers are stated for completeness; rate and kind are independent of them.
        "conditions": [_with_slack(condition) for condition in document["conditions"]],
        "methods": method_rows(certificate, model),
        "figures": document["figures"],
    }


def scope_text(entry: Mapping[str, Any]) -> str:
    """Return the inputs of which a certificate is, as the beginning of a sentence."""
    ranges = input_ranges({"inputs": entry["range"]})
    return "For all inputs" if ranges is None else f"For inputs {format_input_ranges(ranges)}"


def claimed_radius(entry: Mapping[str, Any]) -> float | None:
    """Return the radius of the largest ball that a state stays in; None if no ball is proved.

    Args:
        entry: Certificate as :func:`certificate_entry` returns it.
    """
    balls = [claim["value"] for claim in entry["claims"] if claim["id"].startswith("state_ball_")]
    return max(balls, default=None)


def _with_slack(condition: Mapping[str, Any]) -> dict[str, Any]:
    """Add the margin by which a condition holds; None for a value that is not finite."""
    value = condition["value"]
    return {**condition, "slack": None if value is None else condition["bound"] - value}


def _claim(name: str, title: str, value: float | int | None, unit: str, norm: str | None, text: str) -> dict[str, Any]:
    """Return one claim; without a value it is not proved, and says so."""
    proved = value is not None
    claim = {"id": name, "title": title, "proved": proved, "value": value, "unit": unit, "norm": norm}
    # A claim that is missing would look like one that nobody asked for.
    return {**claim, "statement": text if proved else "Not proved."}


def state_labels(model: SequenceModel) -> dict[str, str]:
    """Return a description of each recurrent state tensor by its name in certificates and exported graphs."""
    from stablernn.cells import StableCell

    # The states of scaling and patches come first.
    labels, number = {}, len(model.patches.state_roles())
    for member, stack in enumerate(model.rnn.stacks):
        for layer, cell in enumerate(cell for cell in stack.modules() if isinstance(cell, StableCell)):
            prefix = f"member {member}, " if len(model.rnn) > 1 else ""
            for name in cell.state_names:
                labels[f"state_{number}"] = f"{prefix}layer {layer}, {name}"
                number += 1
    return labels


def _claims(certificate: Certificate, document: Mapping[str, Any], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    rate, is_regular = document["contraction_rate"], document["time"]["steps"] == "regular"
    claims = [
        _claim(
            "contraction_rate",
            "contraction rate",
            rate,
            "per step" if is_regular else "per regular step of time",
            document["norm"],
            _rate_text(document, is_stack=any(len(stack.bounds) > 1 for stack in certificate.stacks)),
        )
    ]
    # Of a single layer both are the same number; irregular time has no such factor.
    if document["step_rate"] is not None and document["step_rate"] != rate:
        claims.append(
            _claim(
                "step_rate",
                "factor of any one step",
                document["step_rate"],
                "per step",
                document["norm"],
                "No single step multiplies the distance of two states, over all layers, by more than this.",
            )
        )
    claims += _ball_claims(document, labels)
    # Gains and gaps are of the layers' input: one step of them may read a patch of several samples.
    claims += _gain_claims(document)
    claims.append(
        _claim(
            "forgetting_1_percent",
            "forgetting to 0.01",
            certificate.forgetting_time(0.01),
            "steps" if is_regular else "regular steps of time",
            None,
            "After this time, two states at a distance of 1 (2-norm) move no output by more than 0.01.",
        )
    )
    # The two parts of the effect of weights stored in fewer bits add up.
    constant = "Storing the matrices in this format moves no output by more than this constant plus the part below."
    per_input = "The part for each unit of the largest norm of an input."
    for form, bound in document["stored_weights"].items():
        name, title, values = f"stored_weights_{form}", f"error by weights stored as {form}", bound or {}
        claims += [
            _claim(name, f"{title}: constant", values.get("error"), "output", "l2", constant),
            _claim(
                f"{name}_per_input",
                f"{title}: per input",
                values.get("error_per_input"),
                "output / input",
                "l2",
                per_input,
            ),
        ]
    return claims


def have_equal_claims(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether the second certificate of a document proves just the numbers of the first, in the same norms.

    The second may have fewer claims: weights in fewer bits are not always bounded again.
    """
    claims = {claim["id"]: (claim["value"], claim["norm"]) for claim in first["claims"]}
    return first["kind"] == second["kind"] and all(
        claims.get(claim["id"]) == (claim["value"], claim["norm"]) for claim in second["claims"]
    )


def _rate_text(document: Mapping[str, Any], *, is_stack: bool) -> str:
    rate = document["contraction_rate"]
    if rate is None:
        return ""
    if document["kind"] == "contracting":
        # Layers above wait for those below: a stack reaches its rate only after some steps.
        start = "In the end, the distance" if is_stack else "The distance"
        time = "in every step" if document["time"]["steps"] == "regular" else "over the time of each regular step"
        return f"{start} of two states under one input is multiplied by this factor, or a smaller one, {time}."
    if is_stack:
        return (
            "The largest factor of a single layer on the distance of two of its states while its own inputs are equal. "
            "Of all layers together no factor is proved."
        )
    if rate <= 1 + document["rounding_slack"]:
        return "No step increases the distance of two states under one input by more than this factor."
    return "A step may increase the distance of two states, by at most this factor; this is no statement of stability."


def _ball_claims(document: Mapping[str, Any], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    if not document["state_balls"]:
        return [_claim("state_ball", "bound on the state", None, "state", None, "")]
    within = "" if document["inputs"] is None else "within the range "
    return [
        _claim(
            f"state_ball_{ball['state']}",
            f"bound on {ball['state']} ({labels[ball['state']]})",
            ball["radius"],
            "state",
            ball["norm"],
            f"From the zero state, no input {within}leads {ball['state']} further from the origin than this.",
        )
        for ball in document["state_balls"]
    ]


def _gain_claims(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    unit = "output / input"
    claims = [
        _claim(
            "gain_input_to_output",
            "gain from input to output",
            document["gains"]["input_to_output"],
            unit,
            "l2",
            "Inputs that differ by at most 1 at every step lead to outputs that differ by at most this at every step.",
        )
    ]
    # Without contraction an error need not fade, and is counted for a limited time.
    limit = "" if document["kind"] == "contracting" else ", within 100,000 steps"
    for gap in document["gaps"]:
        steps = gap["steps"]
        noun = "input" if steps == 1 else "consecutive inputs"
        claims.append(
            _claim(
                f"gap_{steps}",
                f"effect of {steps:,} wrong {noun}",
                gap["output_error"],
                unit,
                "l2",
                f"If {steps:,} {noun} of the layers {'is' if steps == 1 else 'are'} wrong by at most 1, no output is "
                f"wrong by more than this, at that time or later{limit}.",
            )
        )
    return claims


def _assumptions(certificate: Certificate, document: Mapping[str, Any]) -> list[str]:
    """Return the assumptions in words; the numeric ones are in ``hypotheses``."""
    is_regular = document["time"]["steps"] == "regular"
    texts = [
        "All steps have the regular length."
        if is_regular
        else f"Steps have any lengths up to {document['time']['longest']:g} regular ones.",
        "Every raw input value is finite."
        if certificate.inputs is None
        else "Every raw input value is within the stated range, or missing where the model takes missing values.",
        "The weights are those with the stated digest, and the layers compute in exact arithmetic on them; rounding in "
        "operation is not part of the proof, except where intervals were widened for it.",
    ]
    # A set that is invariant for some inputs holds a sequence that starts anywhere inside.
    if document["state_balls"]:
        inside = "the zero state" if certificate.inputs is None else "the zero state, or a state within the boxes"
        texts.append(f"Bounds on the state: a sequence starts at {inside}.")
    if document["contraction_rate"] is not None:
        texts.append(
            "Rates, gains and forgetting: the two states differ in the tensors "
            f"{', '.join(document['states'])} only, and lie within the bounds on the state where these are proved."
        )
    return texts


class _Method(NamedTuple):
    """A row of the table of methods: what is bounded and how, after which literature, and where the code is."""

    method: str
    reference: str
    code: str


_ROWS = (
    "Rate: the modulus of every entry of the Jacobian is bounded over the invariant set of states, by interval "
    "arithmetic for inputs within a range; the largest weighted row sum is the rate in an infinity norm"
)
_CELL_STATE = (
    "Bounds on the state: with a forget gate of at most f < 1 for inputs within the range, the cell state stays within "
    "the largest input gate times the largest candidate, divided by 1 - f; where a gate can round to 1 in float32, "
    "within 2^26 times the largest increment"
)
_FINER = (
    "whose conditions have one bound for all units of a gate and norms of whole matrices; here each unit has intervals "
    "of its own, and each coordinate a weight"
)
_GRU_PAPER = (
    "Bonassi, Farina, Scattolini: On the stability properties of Gated Recurrent Units neural networks (2021, arXiv "
    "2011.06806)"
)
_LSTM_PAPERS = (
    "Terzi, Bonassi, Farina, Scattolini: Learning model predictive control with long short-term memory networks "
    "(2021), and De Carli and others (arXiv 2503.11553)"
)

_METHODS = {
    "lure": _Method(
        "The step is written as a linear map with nonlinearities of slopes within 0 to 1 (a Lur'e system). A quadratic "
        "norm, with a multiplier for each neuron or one for all, satisfies a matrix inequality, which is checked in "
        "float64 with a bound on its rounding error",
        "after Revay, Wang, Manchester: A convex parameterization of robust recurrent neural networks (2021), and "
        "Gokhale, Proskurnikov, Kawano, Bullo (arXiv 2604.00119), for the matrix inequality; the search for norm and "
        "multipliers is ours. Not used: the inequality of D'Amico, La Bella, Farina for a general class of recurrent "
        "networks (arXiv 2210.09721)",
        "stablernn/bounds/lure.py",
    ),
    "dominance": _Method(
        "Rate: each row of the Jacobian of the Lur'e system is longest at a slope of 0 or of 1; the largest weighted "
        "row sum of both is the rate in an infinity norm",
        "ours: docs/background/stability.md, 'Why these regions', dominant diagonals",
        "stablernn/bounds/lure.py",
    ),
    "rows": _Method(
        _ROWS, "ours: docs/background/stability.md, 'How a step is bounded', method 'Rows'", "stablernn/bounds/gated.py"
    ),
    "gru rows": _Method(_ROWS, f"ours, after {_GRU_PAPER}, {_FINER}", "stablernn/bounds/gated.py"),
    "lstm rows": _Method(_ROWS, f"ours, after {_LSTM_PAPERS}, {_FINER}", "stablernn/bounds/gated.py"),
    "cell state": _Method(_CELL_STATE, f"ours, after {_LSTM_PAPERS}, {_FINER}", "stablernn/bounds/intervals.py"),
    "normalizer": _Method(
        "Bounds on the state: what each earlier step can still add to the normalizer is bounded by the largest forget "
        "gate and the range of the input gate, and the cell state is that many tanh",
        "ours: docs/background/stability.md, 'Inputs within a range'",
        "stablernn/cells/slstm.py",
    ),
    "box": _Method(
        "Bounds on the state: gates, candidates and states get an interval for each unit by interval arithmetic on the "
        "weights, and the box of the states is one that no step leaves",
        "ours: docs/background/stability.md, 'Inputs within a range'",
        "stablernn/bounds/intervals.py",
    ),
    "cube": _Method(
        "Bounds on the state: where the negative diagonal of the recurrent matrix outweighs the rest of its row, a "
        "step leads back from the faces of a cube, which is therefore invariant",
        "ours: docs/background/stability.md, 'Inputs within a range'",
        "stablernn/bounds/step_bound.py",
    ),
    "hand": _Method(
        "The bound is derived by hand from the equation of the cell",
        "ours: docs/background/stability.md, 'How a step is bounded', method 'By hand'",
        "stablernn/cells",
    ),
    "nothing": _Method("nothing is proved of this layer", "docs/background/stability.md", "-"),
    "layers": _Method(
        "Several layers: a comparison system with the rate of each layer and the gains between them, whose weights "
        "make the largest layer's difference shrink",
        "ours: docs/background/stability.md, 'How a step is bounded'",
        "stablernn/certificates/cascade.py",
    ),
}

_RATE_BY_ROWS = {"gru": "gru rows", "gru_d": "gru rows", "lstm": "lstm rows"}
"""Gated cells whose rate from the rows of the Jacobian follows a published condition."""
_BALLS_WITHIN_RANGE = {
    "lstm": "cell state",
    "momentum_lstm": "cell state",
    "sr_lstm": "cell state",
    "ode_lstm": "cell state",
    "slstm": "normalizer",
    "antisymmetric": "cube",
    "antisymmetric_g": "cube",
    "antisym_ablation": "cube",
    "smoothing": "hand",
}
"""Cells whose balls for inputs within a range are not those of the interval arithmetic alone."""
_RATE_BY_HAND = ("lru", "mingru", "minlstm", "unicornn")
_BALLS_BY_HAND = ("cornn", "incremental")
_ANTISYMMETRIC = ("antisymmetric", "antisymmetric_g", "antisym_ablation")


def method_rows(certificate: Certificate, model: SequenceModel) -> list[dict[str, str]]:
    """Return the methods of the proof of each layer, with their references; equal rows stand once.

    Args:
        certificate: The certificate, as computed.
        model: Its model.

    Returns:
        Rows of ``method``, ``reference`` and ``code``.
    """
    from stablernn.cells import StableCell

    # Modules come member after member and layer after layer, as bounds do.
    cells = [cell for cell in model.rnn.modules() if isinstance(cell, StableCell)]
    bounds = [bound for stack in certificate.stacks for bound in stack.bounds]
    # Irregular steps have the bounds for all inputs, whatever range is stated.
    is_within = certificate.inputs is not None and certificate.max_dt is None
    keys: list[str] = []
    for cell, bound in zip(cells, bounds, strict=True):
        layer_keys = [_rate_method(cell, bound), _ball_method(cell, bound, is_within=is_within)]
        keys += [key for key in layer_keys if key is not None] or ["nothing"]
    if any(len(stack.bounds) > 1 for stack in certificate.stacks):
        keys.append("layers")
    return [_METHODS[key]._asdict() for key in dict.fromkeys(keys)]


def _rate_method(cell: StableCell, bound: StepBound) -> str | None:
    """Return the key of the method of a layer's rate; None if it has none."""
    if bound.norm is None:
        return None
    # A rate that no multipliers prove is that of the product of norms over all inner steps.
    if cell.key in _RATE_BY_HAND or (cell.key == "incremental" and bound.multipliers is None):
        return "hand"
    if not _is_lure(cell):
        # The rate of `cfc` in the 2-norm is one by hand.
        return _RATE_BY_ROWS.get(cell.key, "rows") if bound.norm == "linf" else "hand"
    return "dominance" if bound.norm == "linf" else "lure"


def _ball_method(cell: StableCell, bound: StepBound, *, is_within: bool) -> str | None:
    """Return the key of the method of a layer's balls; None if it has none."""
    from stablernn.cells import StableCell

    if not bound.balls:
        return None
    method = _BALLS_WITHIN_RANGE.get(cell.key) if is_within else None
    # Intervals of FastGRNN are found unit by unit; what a dominant diagonal gives is a cube.
    if cell.key in ("fastgrnn", "fastgrnn_lsq") and bound.balls[0].box is None:
        method = "cube"
    # With a forget gate that may reach 1, an LSTM has the ball of its hidden state alone.
    if method in ("cell state", "normalizer") and all(ball.state != "cell" for ball in bound.balls):
        method = None
    if method is not None:
        return method
    # Cells with gates are those that gain by inputs of a bounded size; for all inputs sigmoid and tanh bound them.
    if type(cell).step_bound_within is not StableCell.step_bound_within:
        return "box" if is_within else "hand"
    return "lure" if _is_lure(cell) and cell.key not in _BALLS_BY_HAND else "hand"


def _is_lure(cell: StableCell) -> bool:
    # Gated forms of the antisymmetric cell have the Lur'e system of one step without a method that returns it. Building
    # the matrices of the others is quick; nothing is searched here.
    return cell.key in _ANTISYMMETRIC or cell.lure_system() is not None
