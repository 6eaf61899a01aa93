"""Published parameter counts: a table of sizes, and the formula of each cell with its decoder.

A decoder is linear with bias, N o + o. Two rows of the character model also count the embedding of the 50 symbols, of
length m = 200. Expected numbers are the exact counts behind the rounded figures ("34K") that the papers print; TIMIT
has 129 inputs and outputs, the copy task 10 and 9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Published(NamedTuple):
    """One published size: hidden N, inputs m, outputs o, embedded symbols (0: no embedding), exact count."""

    key: str
    N: int
    m: int
    o: int
    symbols: int
    expected: int
    source: str


PUBLISHED = (
    # The soft-orthogonal RNN is the tanh RNN with a penalty, so its count is the tanh RNN's.
    Published("rnn", 128, 1, 10, 0, 17_930, "soft orthogonal on MNIST, 18K"),
    Published("rnn", 1024, 200, 50, 50, 1_315_650, "RNN started orthogonal on PTB characters, 1.32M"),
    Published("lstm", 128, 1, 10, 0, 67_850, "MNIST, 68K"),
    Published("lstm", 128, 3, 10, 0, 68_874, "CIFAR-10 by pixels, 69K"),
    Published("lstm", 128, 96, 10, 0, 116_490, "CIFAR-10 by rows, printed as 69K"),
    Published("lstm", 158, 129, 129, 0, 202_527, "TIMIT, 200K"),
    Published("antisymmetric", 128, 1, 10, 0, 9_674, "MNIST, 10K"),
    Published("antisymmetric", 256, 3, 10, 0, 36_234, "CIFAR-10 by pixels, 36K"),
    Published("antisymmetric", 256, 96, 10, 0, 60_042, "CIFAR-10 by rows"),
    Published("antisymmetric_g", 128, 1, 10, 0, 9_930, "MNIST, 10K"),
    Published("antisymmetric_g", 256, 3, 10, 0, 37_258, "CIFAR-10 by pixels, 37K"),
    Published("lipschitz", 64, 1, 10, 0, 8_970, "MNIST, 9K"),
    Published("lipschitz", 128, 1, 10, 0, 34_314, "MNIST, 34K"),
    Published("lipschitz", 128, 3, 10, 0, 34_570, "CIFAR-10 by pixels, 34K"),
    Published("lipschitz", 128, 96, 10, 0, 46_474, "CIFAR-10 by rows, 46K"),
    Published("lipschitz", 256, 3, 10, 0, 134_666, "CIFAR-10 by pixels, 134K"),
    Published("lipschitz", 256, 96, 10, 0, 158_474, "CIFAR-10 by rows, 158K"),
    Published("lipschitz", 256, 129, 129, 0, 197_505, "TIMIT, 198K"),
    Published("lipschitz", 750, 200, 50, 50, 1_323_300, "PTB characters, 1.32M"),
    Published("lipschitz_rk2", 128, 1, 10, 0, 34_314, "MNIST, 34K"),
    Published("lipschitz_rk2", 256, 129, 129, 0, 197_505, "TIMIT, 198K"),
    Published("lvf", 1024, 200, 50, 50, 790_850, "PTB characters"),
    Published("lvf_mid", 182, 10, 9, 0, 20_120, "copy task"),
)

# Trained numbers of the cell alone, as functions of N and m. One bias vector a gate, where torch has two.
FORMULAS: dict[str, Callable[[int, int], int]] = {
    "rnn": lambda N, m: N * N + N * m + N,
    "lstm": lambda N, m: 4 * (N * N + N * m + N),
    # Nothing published for gru. c_n, inside the product with the reset gate, cannot be merged with another bias.
    "gru": lambda N, m: 3 * (N * N + N * m + N) + N,
    "antisymmetric": lambda N, m: N * (N - 1) // 2 + N * m + N,
    "antisymmetric_g": lambda N, m: N * (N - 1) // 2 + 2 * (N * m + N),
    "lipschitz": lambda N, m: 2 * N * N + N * m + N,
    "lipschitz_rk2": lambda N, m: 2 * N * N + N * m + N,
    "lvf": lambda N, m: N * (N - 1) // 2 + N * m + N,
    "lvf_mid": lambda N, m: N * (N - 1) // 2 + N * m + N,
}


def total(key: str, N: int, m: int, o: int, symbols: int = 0) -> int:
    """Trained numbers of a cell, its decoder and, for ``symbols`` > 0, an embedding of length m."""
    return FORMULAS[key](N, m) + N * o + o + symbols * m
