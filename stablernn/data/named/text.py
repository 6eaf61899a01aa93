"""Penn Treebank, by characters and by words, as one running text a split."""

from __future__ import annotations

from functools import partial

import numpy as np

from stablernn import errors
from stablernn.data.arrays import SPLITS
from stablernn.data.messages import quote
from stablernn.data.named.entry import DatasetInfo, Request
from stablernn.data.named.places import DataFile
from stablernn.data.step_data import StepData, StoredSteps

#: What stands for the end of a line.
END = "<eos>"


def characters(text: str) -> list[str]:
    """The symbols of a file in which single spaces separate them; a line's end is one of them."""
    return [END if symbol == "\n" else symbol for symbol in text.split(" ") if symbol]


def words(text: str) -> list[str]:
    """The words of a file with a sentence a line, each line's end one of them."""
    return text.replace("\n", f" {END} ").split()


def load(request: Request, *, by: str) -> StepData:
    """The text as tokens: each is to be said from those before it. The vocabulary is that of training, sorted."""
    texts = [request.content(file.name).decode("utf-8") for file in request.info.files]
    parts = [characters(text) if by == "characters" else words(text) for text in texts]
    vocabulary = tuple(sorted(set(parts[0])))
    number = {token: index for index, token in enumerate(vocabulary)}
    kind = np.min_scalar_type(len(vocabulary))
    splits = []
    for file, part in zip(request.info.files, parts, strict=True):
        strange = next((token for token in part if token not in number), None)
        if strange is not None:
            raise errors.DataError(
                f"'{file.name}' has {quote(strange)}, which is not in '{request.info.files[0].name}'; a model cannot "
                "say what it never sees."
            )
        tokens = np.fromiter((number[token] for token in part), kind, len(part))
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
            "tokens": {split: len(part) for split, part in zip(SPLITS, parts, strict=True)},
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

DATASETS = (
    _ENTRY(
        key="ptb-char",
        title="Penn Treebank by characters, 50 symbols",
        files=(
            DataFile("ptb.char.train.txt", "sha256:e313d91425e06c4f0a8fb6e881dcce0c291f2a0e9f4dda54833069b122f91da9"),
            DataFile("ptb.char.valid.txt", "sha256:21661f63ec355085879458b6524644d4add5573541b4be14fb52ab2e2e995eb8"),
            DataFile("ptb.char.test.txt", "sha256:1ef5607ac3c463b16e38bfe7900dd3bfc91de5a96e0f21e7eab5188b465b8ebe"),
        ),
        load=partial(load, by="characters"),
        obtain="T. Mikolov's simple-examples.tgz has its files in the folder 'data'.",
    ),
    _ENTRY(
        key="ptb-word",
        title="Penn Treebank by words, vocabulary of 10,000",
        files=(
            DataFile("ptb.train.txt", "md5:f26c4b92c5fdc7b3f8c7cdcb991d8420"),
            DataFile("ptb.valid.txt", "md5:aa0affc06ff7c36e977d7cd49e3839bf"),
            DataFile("ptb.test.txt", "md5:8b80168b89c18661a38ef683c0dc3721"),
        ),
        load=partial(load, by="words"),
        obtain="T. Mikolov's simple-examples.tgz has its files in the folder 'data'.",
    ),
)
