"""The methods by which the claims of a certificate are proved, each with its literature and its code.

A reference says how far a method follows it: ``after`` where the condition is that of a paper, ``ours, after`` where a
paper has the idea and the bound is a finer one, and ``ours`` where no paper is known. docs/stability.md, 'How a step is
bounded', derives all of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stablernn.bounds.step_bound import StepBound
    from stablernn.cells import StableCell
    from stablernn.certificates.certificate import Certificate
    from stablernn.nn.models import SequenceModel


@dataclass(frozen=True)
class _Method:
    """A row of the table of methods.

    Attributes:
        method: What is bounded, and how.
        reference: Literature, and how far the method follows it.
        code: File or folder of the code.
    """

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
        "ours: docs/stability.md, 'Why these regions', dominant diagonals",
        "stablernn/bounds/lure.py",
    ),
    "rows": _Method(
        _ROWS, "ours: docs/stability.md, 'How a step is bounded', method 'Rows'", "stablernn/bounds/gated.py"
    ),
    "gru rows": _Method(_ROWS, f"ours, after {_GRU_PAPER}, {_FINER}", "stablernn/bounds/gated.py"),
    "lstm rows": _Method(_ROWS, f"ours, after {_LSTM_PAPERS}, {_FINER}", "stablernn/bounds/gated.py"),
    "cell state": _Method(_CELL_STATE, f"ours, after {_LSTM_PAPERS}, {_FINER}", "stablernn/bounds/intervals.py"),
    "normalizer": _Method(
        "Bounds on the state: what each earlier step can still add to the normalizer is bounded by the largest forget "
        "gate and the range of the input gate, and the cell state is that many tanh",
        "ours: docs/stability.md, 'Inputs of a bounded size'",
        "stablernn/cells/slstm.py",
    ),
    "box": _Method(
        "Bounds on the state: gates, candidates and states get an interval for each unit by interval arithmetic on the "
        "weights, and the box of the states is one that no step leaves",
        "ours: docs/stability.md, 'Inputs of a bounded size'",
        "stablernn/bounds/intervals.py",
    ),
    "cube": _Method(
        "Bounds on the state: where the negative diagonal of the recurrent matrix outweighs the rest of its row, a "
        "step leads back from the faces of a cube, which is therefore invariant",
        "ours: docs/stability.md, 'Inputs of a bounded size'",
        "stablernn/bounds/restoring.py",
    ),
    "hand": _Method(
        "The bound is derived by hand from the equation of the cell",
        "ours: docs/stability.md, 'How a step is bounded', method 'By hand'",
        "stablernn/cells",
    ),
    "nothing": _Method("nothing is proved of this layer", "docs/stability.md", "-"),
    "layers": _Method(
        "Several layers: a comparison system with the rate of each layer and the gains between them, whose weights "
        "make the largest layer's difference shrink",
        "ours: docs/stability.md, 'How a step is bounded'",
        "stablernn/certificates/cascade.py",
    ),
}

_RATE_BY_ROWS = {
    "gru": "gru rows",
    "gru_d": "gru rows",
    "lstm": "lstm rows",
    "lem": "rows",
    "cfc": "rows",
    "fastgrnn": "rows",
    "fastgrnn_lsq": "rows",
}
"""Gated cells whose rate in an infinity norm follows from the rows of the Jacobian."""
_BALLS_WITHIN_RANGE = {
    "lstm": "cell state",
    "momentum_lstm": "cell state",
    "sr_lstm": "cell state",
    "ode_lstm": "cell state",
    "slstm": "normalizer",
    "antisymmetric": "cube",
    "antisymmetric_g": "cube",
    "antisym_ablation": "cube",
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
    return [asdict(_METHODS[key]) for key in dict.fromkeys(keys)]


def _rate_method(cell: StableCell, bound: StepBound) -> str | None:
    """Return the key of the method of a layer's rate; None if it has none."""
    if bound.norm is None:
        return None
    if cell.key in _RATE_BY_ROWS:
        # The rate of `cfc` in the 2-norm is the one by hand.
        return _RATE_BY_ROWS[cell.key] if bound.norm == "linf" else "hand"
    # A rate that no multipliers prove is that of the product of norms over all inner steps.
    if cell.key in _RATE_BY_HAND or (cell.key == "incremental" and bound.multipliers is None):
        return "hand"
    if not _is_lure(cell):
        return "hand"
    return "dominance" if bound.norm == "linf" else "lure"


def _ball_method(cell: StableCell, bound: StepBound, *, is_within: bool) -> str | None:
    """Return the key of the method of a layer's balls; None if it has none."""
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
    if _is_gated(cell):
        return "box" if is_within else "hand"
    return "lure" if _is_lure(cell) and cell.key not in _BALLS_BY_HAND else "hand"


def _is_gated(cell: StableCell) -> bool:
    from stablernn.cells import StableCell

    return type(cell).step_bound_within is not StableCell.step_bound_within


def _is_lure(cell: StableCell) -> bool:
    # Gated forms of the antisymmetric cell have the Lur'e system of one step without a method that returns it. Building
    # the matrices of the others is quick; nothing is searched here.
    return cell.key in _ANTISYMMETRIC or cell.lure_system() is not None
