"""Statements of the Lipschitz RNN on robustness and on its parts."""

from __future__ import annotations

from stablernn_papers.statements.common import accuracy
from stablernn_papers.statements.evidence import Figure
from stablernn_papers.statements.rules import Better, PeakInside
from stablernn_papers.statements.statement import Statement

_PAPER = "Lipschitz RNN"
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
_SHARES = tuple(f"skew-weight-{value:g}" for value in (0.5, 0.6, 0.7, 0.8, 0.9, 1))

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
                PeakInside(accuracy("ablation", data), _SHARES),
            ),
        )
    ),
)
