"""Penn Treebank by characters and by words, as one continuous text per split."""

from __future__ import annotations

from functools import partial

import numpy as np

from stablernn import errors
from stablernn.data.arrays import SPLITS
from stablernn.data.messages import quote
from stablernn.data.named.entry import DatasetInfo, Request
from stablernn.data.named.places import DataFile
from stablernn.data.step_data import StepData, StoredSteps

#: Token for the end of a line.
END = "<eos>"


def characters(text: str) -> list[str]:
    """Split a text whose characters are separated by spaces; the end of a line is a token."""
    return [END if symbol == "\n" else symbol for symbol in text.split(" ") if symbol]


def words(text: str) -> list[str]:
    """Split a text with one sentence per line into words; the end of a line is a token."""
    return text.replace("\n", f" {END} ").split()


def load(request: Request, *, by: str) -> StepData:
    """Load the text as tokens, each to be predicted from the previous ones.

    The vocabulary is the sorted set of training tokens.
    """
    texts = [request.content(file.name).decode("utf-8") for file in request.info.files]
    token_lists = [characters(text) if by == "characters" else words(text) for text in texts]
    vocabulary = tuple(sorted(set(token_lists[0])))
    indices = {token: index for index, token in enumerate(vocabulary)}
    # The smallest dtype, since a text has millions of tokens.
    dtype = np.min_scalar_type(len(vocabulary))
    splits = []
    for file, split_tokens in zip(request.info.files, token_lists, strict=True):
        unknown_token = next((token for token in split_tokens if token not in indices), None)
        if unknown_token is not None:
            raise errors.DataError(
                f"'{file.name}' has {quote(unknown_token)}, which is not in '{request.info.files[0].name}'; a model "
                "cannot predict a token that it was not trained on."
            )
        tokens = np.fromiter((indices[token] for token in split_tokens), dtype, len(split_tokens))
        # The target of each token is the next one.
        splits.append(StoredSteps([tokens[:-1]], [tokens[1:]]))
    train, validation, test = splits
    return StepData(
        name=request.info.key,
        output="categorical",
        tokens=True,
        features=vocabulary,
        outputs=vocabulary,
        train=train,
        validation=validation,
        test=test,
        continuous=True,
        headline="bpc" if by == "characters" else "perplexity",
        notes={
            "tokens": {split: len(tokens) for split, tokens in zip(SPLITS, token_lists, strict=True)},
            "vocabulary": len(vocabulary),
            **request.notes(),
        },
        fingerprint=request.fingerprint(),
    )


_ENTRY = partial(
    DatasetInfo,
    task="predict-next",
    licence="LDC99T42, research use, not to be passed on",
    source="M. Marcus et al., Penn Treebank, as prepared by T. Mikolov",
    splits="the published files",
    folders=("ptb", "PTB", "simple-examples/data", "pennchar", "penn", "penntree"),
)

PTB_CHAR = _ENTRY(
    key="ptb-char",
    title="Penn Treebank by characters, 50 symbols",
    files=(
        DataFile("ptb.char.train.txt", "sha256:e313d91425e06c4f0a8fb6e881dcce0c291f2a0e9f4dda54833069b122f91da9"),
        DataFile("ptb.char.valid.txt", "sha256:21661f63ec355085879458b6524644d4add5573541b4be14fb52ab2e2e995eb8"),
        DataFile("ptb.char.test.txt", "sha256:1ef5607ac3c463b16e38bfe7900dd3bfc91de5a96e0f21e7eab5188b465b8ebe"),
    ),
    load=partial(load, by="characters"),
    obtain="T. Mikolov's simple-examples.tgz has its files in the folder 'data'.",
)
PTB_WORD = _ENTRY(
    key="ptb-word",
    title="Penn Treebank by words, vocabulary of 10,000",
    files=(
        DataFile("ptb.train.txt", "md5:f26c4b92c5fdc7b3f8c7cdcb991d8420"),
        DataFile("ptb.valid.txt", "md5:aa0affc06ff7c36e977d7cd49e3839bf"),
        DataFile("ptb.test.txt", "md5:8b80168b89c18661a38ef683c0dc3721"),
    ),
    load=partial(load, by="words"),
    obtain="T. Mikolov's simple-examples.tgz has its files in the folder 'data'.",
)
