"""Statements of the AntisymmetricRNN and of its review slides."""

from __future__ import annotations

from stablernn_papers.statements.rules import Better, Figure, Limit, Ordered, Statement, accuracy

_PAPER = "AntisymmetricRNN"
_NORMS = tuple(
    Figure("dynamics", "none", f"norm_{number}", view="measured", label=f"norm from start {number + 1}")
    for number in range(3)
)
_FALLING_NORMS = tuple(
    Figure("dynamics", "none", f"norm_{number}", view="measured", is_lower_better=True, label=figure.label)
    for number, figure in enumerate(_NORMS)
)
_RADIUS = Figure("dynamics", "none", "spectral_radius", view="measured", label="largest |eigenvalue| at 0")
_SECONDS = Figure("speed", "pixels", "step_seconds", view="measured", is_lower_better=True, label="seconds a step")
_FROM_CIRCLE = Figure(
    "spectra",
    "cifar10-noise-padded",
    "mean_modulus",
    is_lower_better=True,
    distance_from=1.0,
    label="distance of the mean |eigenvalue| from 1",
)

ANTISYMMETRIC = (
    *(
        Statement(
            f"antisymmetric-beats-lstm-{data}",
            f"The AntisymmetricRNN is more accurate than the LSTM on MNIST pixel by pixel, {order}.",
            f"{_PAPER}, table 1",
            Better(accuracy("mnist-pixel", data), ("antisymmetric",), ("lstm",)),
        )
        for data, order in (("mnist", "in order"), ("pmnist", "permuted"))
    ),
    Statement(
        "gate-helps-mnist",
        "A gate makes the AntisymmetricRNN more accurate on MNIST in order.",
        f"{_PAPER}, table 1",
        Better(accuracy("mnist-pixel", "mnist"), ("antisymmetric_g",), ("antisymmetric",)),
    ),
    Statement(
        "gate-hurts-pmnist",
        "A gate makes the AntisymmetricRNN less accurate on permuted MNIST.",
        f"{_PAPER}, table 1",
        Better(accuracy("mnist-pixel", "pmnist"), ("antisymmetric",), ("antisymmetric_g",)),
    ),
    *(
        statement
        for data, name in (("cifar10", "CIFAR-10 pixel by pixel"), ("cifar10-noise-padded", "noise-padded CIFAR-10"))
        for statement in (
            Statement(
                f"gate-helps-{data}",
                f"A gate makes the AntisymmetricRNN more accurate on {name}.",
                f"{_PAPER}, table 2",
                Better(accuracy("cifar10", data), ("antisymmetric_g",), ("antisymmetric",)),
            ),
            Statement(
                f"antisymmetry-helps-{data}",
                f"The same gated cell with a free matrix is less accurate on {name}.",
                f"{_PAPER}, table 2, ablation model",
                Better(accuracy("cifar10", data), ("antisymmetric", "antisymmetric_g"), ("antisym_ablation",)),
            ),
        )
    ),
    Statement(
        "lstm-fails-noise-padded",
        "The LSTM forgets the image behind the noise: its accuracy on noise-padded CIFAR-10 stays below twice a guess.",
        f"{_PAPER}, table 2",
        Limit(accuracy("cifar10", "cifar10-noise-padded"), ("lstm",), at_most=0.2),
    ),
    Statement(
        "antisymmetric-trains-on-noise-padded",
        "The AntisymmetricRNN with diffusion learns noise-padded CIFAR-10, where the LSTM does not.",
        f"{_PAPER}, table 2",
        Better(accuracy("cifar10", "cifar10-noise-padded"), ("antisymmetric", "antisymmetric_g"), ("lstm",)),
    ),
    Statement(
        "jacobians-near-unit-circle",
        "After training on noise-padded CIFAR-10 the eigenvalues of the Jacobians lie nearer to the unit circle than "
        "those of the LSTM and of the model with a free matrix.",
        f"{_PAPER}, figure of the eigenvalues",
        Better((_FROM_CIRCLE,), ("antisymmetric", "antisymmetric_g"), ("lstm", "antisym_ablation")),
    ),
    Statement(
        "imaginary-neither-grows-nor-vanishes",
        "Without input, states grow with positive eigenvalues, vanish with negative ones, and do neither with "
        "imaginary ones.",
        f"{_PAPER}, figure 1 (e) to (g)",
        Ordered(_NORMS, ("f-negative", "g-imaginary", "e-positive")),
    ),
    Statement(
        "diffusion-damps",
        "Diffusion damps the states of a system with imaginary eigenvalues.",
        f"{_PAPER}, figure 1 (g) and (h)",
        Better(_FALLING_NORMS, ("h-diffusion",), ("g-imaginary",)),
    ),
    Statement(
        "diffusion-meets-the-criterion",
        "Diffusion makes the forward scheme stable: no eigenvalue of a step lies outside the unit circle.",
        f"{_PAPER}, stability of the forward scheme and figure 1 (h)",
        Limit((_RADIUS,), ("h-diffusion",), at_most=1.0),
    ),
    Statement(
        "antisymmetric-faster-than-lstm",
        "An epoch of the AntisymmetricRNN takes less time than one of the LSTM of equal size in the same loop.",
        "review slides of the AntisymmetricRNN, speed comparison",
        Better((_SECONDS,), ("antisymmetric-loop",), ("lstm-loop",)),
    ),
    Statement(
        "fused-operations-are-faster",
        "Fused operations make an epoch of the AntisymmetricRNN faster than a loop of single ones.",
        "review slides of the AntisymmetricRNN, speed comparison",
        Better((_SECONDS,), ("antisymmetric-fused",), ("antisymmetric-loop",)),
    ),
)
