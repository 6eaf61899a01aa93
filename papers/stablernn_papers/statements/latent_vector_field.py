"""Statements of the latent vector field RNN, whose figures are missing in the text that was read."""

from __future__ import annotations

from stablernn_papers.statements.rules import Better, Comparable, Limit, Statement, accuracy, loss

_PAPER = "latent vector field RNN"
_UNITARY = ("urnn", "eunn", "fc_urnn", "exprnn", "nnrnn")
_TOLERANCE = 0.01
"""Difference of accuracies that "comparable" allows; the paper gives none."""

LATENT_VECTOR_FIELD = (
    *(
        statement
        for delay in (100, 1000)
        for statement in (
            Statement(
                f"lvf-matches-exprnn-copy-{delay}",
                f"On the copy task over {delay:,} steps lvfRNN is about as accurate as expRNN.",
                f"{_PAPER}, appendix E, table 4",
                Comparable(accuracy("copy", f"copy-{delay}"), ("lvf_mid",), ("exprnn",), _TOLERANCE),
            ),
            Statement(
                f"lvf-matches-unitary-cells-copy-{delay}",
                f"On the copy task over {delay:,} steps lvfRNN is about as accurate as all unitary cells.",
                f"{_PAPER}, appendix E, table 4",
                Comparable(accuracy("copy", f"copy-{delay}"), ("lvf_mid",), _UNITARY, _TOLERANCE),
            ),
            Statement(
                f"unitary-cells-match-copy-{delay}",
                f"On the copy task over {delay:,} steps the unitary cells match each other.",
                f"{_PAPER}, appendix E, table 4",
                Comparable(accuracy("copy", f"copy-{delay}"), _UNITARY, _UNITARY, _TOLERANCE),
            ),
            Statement(
                f"lvf-higher-loss-copy-{delay}",
                f"On the copy task over {delay:,} steps the loss of lvfRNN is higher than that of expRNN.",
                f"{_PAPER}, appendix E",
                Better(loss("copy", f"copy-{delay}", "loss"), ("exprnn",), ("lvf_mid",)),
            ),
            Statement(
                f"rnn-fails-copy-{delay}",
                f"On the copy task over {delay:,} steps a vanilla RNN fails: its accuracy is below twice a guess.",
                f"{_PAPER}, appendix E",
                Limit(accuracy("copy", f"copy-{delay}"), ("rnn",), at_most=0.25),
            ),
        )
    ),
    *(
        statement
        for data, name in (("jsb", "JSB Chorales"), ("musedata", "MuseData"))
        for statement in (
            Statement(
                f"lvf-beats-exprnn-{data}",
                f"lvfRNN has a lower loss than expRNN on {name}.",
                f"{_PAPER}, section 5.3, table 3",
                Better(loss("polyphonic", data, "nll"), ("lvf",), ("exprnn",)),
            ),
            Statement(
                f"lvf-best-{data}",
                f"lvfRNN has a significantly lower loss than all other cells on {name}.",
                f"{_PAPER}, section 5.3, table 3",
                Better(loss("polyphonic", data, "nll"), ("lvf",), ("rnn", *_UNITARY)),
            ),
        )
    ),
    Statement(
        "lvf-best-ptb-char",
        "With 1,024 units lvfRNN needs the fewest bits per character of the Penn Treebank.",
        f"{_PAPER}, section 5.1, table 1",
        Better(
            loss("ptb-char", "ptb-char-150", "bpc"),
            ("lvf",),
            ("rnn", "urnn", "eunn", "fc_urnn", "exprnn-1024", "nnrnn"),
        ),
    ),
    Statement(
        "lvf-and-exprnn-best-timit",
        "lvfRNN and expRNN have a far lower error on TIMIT than the other cells.",
        f"{_PAPER}, section 5.2, table 2",
        Better(loss("speech", "timit", "mse"), ("lvf", "exprnn"), ("lstm", "fc_urnn", "scornn")),
    ),
)
