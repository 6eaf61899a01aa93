"""The page of a certificate document that explains its terms to a control engineer."""

from __future__ import annotations

PROSE: tuple[tuple[str, str], ...] = (
    (
        "The model",
        "The model reads a sequence one sample at a time and carries a state from one step to the next: it is a "
        "discrete-time dynamical system, x(t+1) = f(x(t), u(t)), whose parameters were found by training. This "
        "document states what is known of its stability. It keeps two sources of knowledge apart.",
    ),
    (
        "Proved and observed",
        "Proved means that a bound was computed from the weights, by a method whose reference is given, for every "
        "input and every state that its hypotheses admit, including those that nobody has tried. Each hypothesis is "
        "listed with its value, its limit, and the slack between them; a bound with little slack holds just as well, "
        "but a small change of the weights may end it. Observed means that something was measured on particular data: "
        "it may be larger or smaller elsewhere. An observation can refute a proof, never replace one. Throughout the "
        "document, what is proved has a solid orange mark and what is observed a dashed blue one. In figures, proved "
        "bounds are dashed orange lines and observations are blue.",
    ),
    (
        "Contraction",
        "Run the model twice under the same input, from two different states. If the distance of the two states, in a "
        "fixed norm, is multiplied by at most r < 1 in every step, the model is contracting at the rate r. It then "
        "has no memory of its start that does not fade, no limit cycles of its own, and a disturbance of the state "
        "decays as in a stable linear filter, whatever the input does. Non-expansive means r = 1: a disturbance does "
        "not grow, and need not decay. A rate above 1 is no statement of stability. The norm is part of the claim: in "
        "other norms, the distance may rise for some steps before it falls. It is the 2-norm (l2), the largest "
        "coordinate (linf), or one of these after a linear map or weights (weighted).",
    ),
    (
        "Forgetting",
        "The time constant in another form: the number of steps after which the outputs from two states at a distance "
        "of 1, under one input, differ by at most 0.01.",
    ),
    (
        "Ball",
        "An invariant ball is a set around the origin that no input leads the state out of, from the zero state: "
        "bounded-input bounded-state stability with the bound in numbers. The server compares every state that it "
        "computes with its ball; a state outside can only come from rounding, a wrong certificate or a damaged file, "
        "and is counted.",
    ),
    (
        "Gain",
        "If two inputs of the recurrent layers differ by at most 1 at every step, their outputs differ by at most the "
        "gain: an incremental L-infinity (and L2) gain. The effect of wrong inputs bounds the same for a limited "
        "number of steps. Units are those of the layers' input, after the model's own scaling. One wrong value of the "
        "data can be part of several steps; the front page says what it does to the model's output.",
    ),
    (
        "Inputs within a range",
        "For cells with gates, unlimited inputs can hold a gate open or closed, and little can be proved. A second "
        "certificate is therefore for raw inputs within a stated range, the range of the training data and half as "
        "much again, unless another one was requested. It says nothing about inputs outside, which a server counts.",
    ),
    (
        "What this is not",
        "Stability is not accuracy: a contracting model can be wrong. The certificate is of exact arithmetic on the "
        "stored weights. It does not cover rounding in operation, the hardware, or the system in which the model is "
        "used.",
    ),
)
"""Pairs of a term and its explanation."""
