"""Statements of the Lipschitz RNN on accuracy, initialization, its matrices, robustness and its parts."""

from __future__ import annotations

from stablernn_papers.statements.rules import (
    Better,
    Figure,
    Ordered,
    PeakInside,
    SmallSpread,
    Statement,
    accuracy,
    loss,
)
from stablernn_papers.tables import published_table

_PAPER = "Lipschitz RNN"
_SHARES = ("lipschitz-0.5", "lipschitz-0.65", "lipschitz-0.75", "lipschitz-0.85", "lipschitz-1")
_RIVALS = (
    "lstm",
    "momentum_lstm",
    "urnn",
    "fc_urnn-116",
    "fc_urnn-512",
    "soft_orth",
    "kru",
    "antisymmetric",
    "antisymmetric_g",
    "incremental",
    "exprnn",
    "nais_net",
)
_ORDERS = (("mnist", "in order"), ("pmnist", "permuted"))
_SEEDS = 10
_ROUNDING = 0.001
"""Rounding of a printed accuracy, at both ends of a range together."""
_DIGITS_TEST_IMAGES = 360
_SENSITIVITY_ROWS = tuple(row.key for row in published_table("init-sensitivity").rows)
_PENDULUM_NORMS = tuple(
    Figure(
        "dynamics",
        "none",
        f"norm_{number}",
        view="measured",
        is_lower_better=True,
        label=f"last norm from start {number + 1}",
    )
    for number in range(3)
)
_PENDULUM_DISTANCE = Figure(
    "dynamics", "none", "distance", view="measured", is_lower_better=True, label="distance from the pendulum"
)


def _printed_spreads(data: str) -> dict[str, float]:
    """Return the printed maximum minus the printed minimum of each row of table 4."""
    spreads = {}
    for row in published_table("init-sensitivity").rows:
        lowest, _, highest = row.published[data]
        assert lowest is not None
        assert highest is not None
        spreads[row.key] = (highest - lowest) / 100 + _ROUNDING
    return spreads


def _eigenvalues(name: str, title: str) -> Figure:
    return Figure("spectra", "mnist", name, is_lower_better=True, distance_from=0.0, label=f"|Re| of {title}")


def _changes(name: str, title: str) -> Figure:
    label = f"change of Re {title}"
    return Figure("spectra", "mnist", f"{name}_last", is_lower_better=True, minus=f"{name}_first", label=label)


LIPSCHITZ = (
    *(
        statement
        for data, order in _ORDERS
        for statement in (
            Statement(
                f"lipschitz-best-{data}",
                f"With 128 units the Lipschitz RNN is more accurate than every other model on MNIST pixel by pixel, "
                f"{order}.",
                f"{_PAPER}, table 1",
                Better(accuracy("mnist-pixel", data), ("lipschitz-128",), _RIVALS),
            ),
            Statement(
                f"lipschitz-insensitive-{data}",
                f"The Lipschitz RNN is insensitive to its initial weights on MNIST pixel by pixel, {order}: ten seeds "
                "lie no further apart than printed.",
                f"{_PAPER}, appendix B.1, table 4",
                SmallSpread(accuracy("init-sensitivity", data), _SENSITIVITY_ROWS, _SEEDS, _printed_spreads(data)),
            ),
            Statement(
                f"midpoint-better-{data}",
                f"The explicit midpoint rule is more accurate than Euler's on MNIST pixel by pixel, {order}.",
                f"{_PAPER}, section 1, tables 1 and 4",
                Better(accuracy("init-sensitivity", data), ("lipschitz_rk2-64",), ("lipschitz-64",)),
            ),
        )
    ),
    Statement(
        "lipschitz-insensitive-digits",
        "The Lipschitz RNN is insensitive to its initial weights (on digits, which the paper does not have: ten seeds "
        "lie no further apart than draws of other test images would).",
        f"{_PAPER}, appendix B.1",
        SmallSpread(
            accuracy("init-sensitivity", "digits"),
            _SENSITIVITY_ROWS,
            _SEEDS,
            test_sequences=_DIGITS_TEST_IMAGES,
        ),
    ),
    Statement(
        "midpoint-better-digits",
        "The explicit midpoint rule is more accurate than Euler's (on digits, which the paper does not have).",
        f"{_PAPER}, section 1",
        Better(accuracy("init-sensitivity", "digits"), ("lipschitz_rk2-64",), ("lipschitz-64",)),
    ),
    Statement(
        "lipschitz-beats-antisymmetric-mnist",
        "With fewer weights, 64 units, the Lipschitz RNN is more accurate than the AntisymmetricRNN on MNIST in order.",
        f"{_PAPER}, section 6",
        Better(accuracy("mnist-pixel", "mnist"), ("lipschitz-64",), ("antisymmetric",)),
    ),
    Statement(
        "larger-better-pmnist",
        "On permuted MNIST 128 units are more accurate than 64.",
        f"{_PAPER}, section 6",
        Better(accuracy("mnist-pixel", "pmnist"), ("lipschitz-128",), ("lipschitz-64",)),
    ),
    Statement(
        "lipschitz-beats-antisymmetric-cifar10",
        "The Lipschitz RNN is more accurate than the AntisymmetricRNN on CIFAR-10 pixel by pixel.",
        f"{_PAPER}, appendix B.2, table 5",
        Better(accuracy("cifar10", "cifar10"), ("lipschitz-128",), ("antisymmetric",)),
    ),
    Statement(
        "lipschitz-best-cifar10-noise-padded",
        "The Lipschitz RNN is more accurate than the AntisymmetricRNN and the incremental RNN on noise-padded "
        "CIFAR-10.",
        f"{_PAPER}, appendix B.2, table 5",
        Better(accuracy("cifar10", "cifar10-noise-padded"), ("lipschitz-128",), ("antisymmetric", "incremental")),
    ),
    *(
        statement
        for steps in (150, 300)
        for statement in (
            Statement(
                f"lipschitz-best-ptb-char-{steps}",
                f"The Lipschitz RNN needs the fewest bits per character of the Penn Treebank over {steps} steps.",
                f"{_PAPER}, appendix B.3.1, table 6",
                Better(
                    loss("ptb-char", f"ptb-char-{steps}", "bpc"),
                    ("lipschitz",),
                    ("rnn", "rnn_orth", "eunn", "exprnn", "nnrnn", "antisymmetric"),
                ),
            ),
            Statement(
                f"lipschitz-beats-antisymmetric-ptb-char-{steps}",
                f"The AntisymmetricRNN needs considerably more bits per character than the Lipschitz RNN over {steps} "
                "steps.",
                f"{_PAPER}, appendix B.3.1",
                Better(loss("ptb-char", f"ptb-char-{steps}", "bpc"), ("lipschitz",), ("antisymmetric",)),
            ),
        )
    ),
    Statement(
        "lipschitz-best-ptb-word",
        "The Lipschitz RNN has the lowest perplexity by words of the Penn Treebank.",
        f"{_PAPER}, appendix B.3.2, table 7",
        Better(
            loss("ptb-word", "ptb-word", "perplexity"),
            ("lipschitz",),
            ("lstm", "spectral_rnn", "fastrnn", "fastgrnn", "fastgrnn_lsq", "incremental"),
        ),
    ),
    *(
        statement
        for data, name in (
            ("timit-recall", "TIMIT"),
            ("fsdd-frames", "speech (on spoken digits, which the paper does not have)"),
        )
        for statement in (
            Statement(
                f"lipschitz-best-{data}",
                f"The Lipschitz RNN has the lowest error on {name}.",
                f"{_PAPER}, section 6, table 2",
                Better(loss("speech", data, "mse"), ("lipschitz",), ("lstm", "momentum_lstm", "sr_lstm", "exprnn")),
            ),
            Statement(
                f"midpoint-better-{data}",
                f"The explicit midpoint rule has a lower error than Euler's on {name}.",
                f"{_PAPER}, section 6, table 2",
                Better(loss("speech", data, "mse"), ("lipschitz_rk2",), ("lipschitz",)),
            ),
            Statement(
                f"momentum-beats-lstm-{data}",
                f"Momentum lowers the error of the LSTM on {name}.",
                f"{_PAPER}, section 6, table 2",
                Better(loss("speech", data, "mse"), ("momentum_lstm", "sr_lstm"), ("lstm",)),
            ),
        )
    ),
    Statement(
        "damping-decides-the-pendulum",
        "The tuning of share and damping decides how a unit behaves that learns the pendulum: of two skew-symmetric "
        "ones the damped one loses its energy.",
        f"{_PAPER}, section 4, figure 1",
        Better(_PENDULUM_NORMS, ("pendulum-1-0.1",), ("pendulum-1-0",)),
    ),
    Statement(
        "symmetric-part-learns-the-pendulum",
        "With a symmetric part the unit can follow growth and decay: it stays nearer to the pendulum than a "
        "skew-symmetric one.",
        f"{_PAPER}, section 4, figure 1",
        Better((_PENDULUM_DISTANCE,), ("pendulum-0.75-0", "pendulum-0.75-0.1"), ("pendulum-1-0", "pendulum-1-0.1")),
    ),
    Statement(
        "skew-share-turns-eigenvalues-imaginary",
        "The real parts of the eigenvalues of both matrices approach 0 as the share of the skew part approaches 1.",
        f"{_PAPER}, appendix A.2, figure 4",
        Ordered((_eigenvalues("linear_last", "A"), _eigenvalues("recurrent_last", "W")), _SHARES),
    ),
    Statement(
        "skew-share-keeps-eigenvalues",
        "The greater the share of the skew part, the less the eigenvalues change during training.",
        f"{_PAPER}, lemma 2, figure 5",
        Ordered((_changes("linear", "A"), _changes("recurrent", "W")), _SHARES),
    ),
)


_VIEWS = {"whole": "after all epochs", "matched": "at equal accuracy"}
"""Both views, since the paper's models have roughly the same training loss, and here they have not."""


def _figures(names: dict[str, str], *, percent: bool, is_lower_better: bool = False) -> tuple[Figure, ...]:
    return tuple(
        Figure(
            "robustness",
            "mnist-rows",
            name,
            view=view,
            percent=percent,
            is_lower_better=is_lower_better,
            label=f"{title} {words}",
        )
        for name, title in names.items()
        for view, words in _VIEWS.items()
    )


_CONTINUOUS = ("neural_ode_rnn", "antisymmetric")
_NOISE = {"noise.white": "white noise", "noise.salt_and_pepper": "salt and pepper"}
_FACTORS = tuple(f"linear-scale-{value:g}" for value in (0, 0.5, 1, 1.5, 2, 4))
_SKEW_SHARES = tuple(f"skew-weight-{value:g}" for value in (0.5, 0.6, 0.7, 0.8, 0.9, 1))

LIPSCHITZ_ROBUSTNESS = (
    *(
        Statement(
            f"lipschitz-resists-{key}",
            f"The Lipschitz RNN keeps more accuracy under {title} than the neural ODE and the AntisymmetricRNN.",
            f"{_PAPER}, section 7, table 3",
            Better(_figures({figure: title}, percent=True), ("lipschitz",), _CONTINUOUS),
        )
        for key, figure, title in (
            ("pgd", "pgd", "PGD"),
            ("deepfool-l2", "deepfool_l2", "DeepFool (2-norm)"),
            ("deepfool-linf", "deepfool_linf", "DeepFool (largest change)"),
        )
    ),
    *(
        Statement(
            f"lipschitz-resists-{key}",
            f"The Lipschitz RNN keeps more accuracy under {_NOISE[figure]} than the neural ODE and the "
            "AntisymmetricRNN (mean over the levels of noise).",
            f"{_PAPER}, section 7, figure 2",
            Better(_figures({figure: _NOISE[figure]}, percent=True), ("lipschitz",), _CONTINUOUS),
        )
        for key, figure in (("white-noise", "noise.white"), ("salt-and-pepper", "noise.salt_and_pepper"))
    ),
    *(
        Statement(
            f"lipschitz-flatter-{key}",
            f"The {title} of the Hessian is smaller for the Lipschitz RNN than for the neural ODE and the "
            "AntisymmetricRNN.",
            f"{_PAPER}, section 7, table 3",
            Better(_figures({figure: title}, percent=False, is_lower_better=True), ("lipschitz",), _CONTINUOUS),
        )
        for key, figure, title in (
            ("eigenvalue", "hessian_largest", "largest eigenvalue"),
            ("trace", "hessian_trace", "trace"),
            ("condition", "hessian_condition", "condition number"),
        )
    ),
    *(
        statement
        for data, name in (
            ("mnist", "MNIST in order"),
            ("pmnist", "permuted MNIST"),
            ("digits", "digits, which the paper does not have"),
        )
        for statement in (
            Statement(
                f"linear-term-helps-{data}",
                "The linear term makes the Lipschitz RNN more accurate than the neural ODE that is left without it, "
                f"on {name}.",
                f"{_PAPER}, section 7.1, figure 3 (a)",
                Better(accuracy("ablation", data), (_FACTORS[2],), (_FACTORS[0],)),
            ),
            Statement(
                f"large-linear-term-degenerates-{data}",
                f"A linear term with a large factor drowns the input: its accuracy falls, on {name}.",
                f"{_PAPER}, section 7.1, figure 3 (a)",
                Better(accuracy("ablation", data), (_FACTORS[2],), (_FACTORS[-1],)),
            ),
            Statement(
                f"skew-share-has-a-peak-{data}",
                f"The accuracy is best at a share of the skew part between one half and one, on {name}.",
                f"{_PAPER}, section 7.1, figure 3 (b)",
                PeakInside(accuracy("ablation", data), _SKEW_SHARES),
            ),
        )
    ),
)
