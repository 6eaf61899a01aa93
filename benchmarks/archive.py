"""Accuracy of the default and of MiniRocket on all sets of the UCR and UEA archives in a folder.

    STABLERNN_DATA=... python benchmarks/archive.py --seeds 0 --minirocket

runs ``stablernn train --data FILE --budget 2m`` and MiniRocket on each pair ``NAME_TRAIN`` and ``NAME_TEST`` (``.ts``,
``.tsv`` or ``.arff``, plain or compressed) at any depth below ``$STABLERNN_DATA``. A row for each set and seed is
written to ``benchmarks/results/archive.json`` after its runs, so that the same command continues after a stop; runs
that the file has, failed ones too, are repeated with ``--again`` only. At the end the section of ``docs/accuracy.md``
is written, which ``--page`` does alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import PAGE, PROBLEMS, build_aeon_environment, run_command, run_minirocket, save_arrays, shown

from stablernn.data import load_data
from stablernn.data.readers.paths import find_test_file
from stablernn.errors import StableRNNError

RESULTS = Path(__file__).parent / "results" / "archive.json"
ENDINGS = (".ts", ".tsv", ".arff")
"""Formats of the archives, the one that is preferred first; of the three only ``.ts`` has all sets of both."""
_TRAIN_FILE = re.compile(r"(?P<name>\w[\w-]*)_TRAIN(?P<ending>\.ts|\.tsv|\.arff)(\.gz|\.xz)?")
_ONE_DIMENSION = re.compile(r"Dimension\d+$")
_STOPPED = (130, -signal.SIGINT)
"""Exit statuses of a program that Ctrl-C ended: that of the command line, and that of an interpreter."""
_LONGEST_REASON = 300

Row = dict[str, Any]


@dataclass(frozen=True)
class ArchiveSet:
    """A set of the archives.

    Attributes:
        name: Its name.
        train: The training file.
        test: The test file in the same folder; None if it is missing.
    """

    name: str
    train: Path
    test: Path | None


def find_sets(root: Path) -> list[ArchiveSet]:
    """Return the sets below a folder, in the order of their names.

    Of several training files of a set one with a test file comes first, then the preferred ending, then the one that is
    fewer folders down: the UCR archive has a second, filled-in copy of some sets in a folder of its own.
    """
    candidates: dict[str, list[tuple[Any, ArchiveSet]]] = {}
    for path in root.rglob("*_TRAIN.*"):
        match = _TRAIN_FILE.fullmatch(path.name)
        if match is None or not path.is_file():
            continue
        test = find_test_file(path)
        preference = (test is None, ENDINGS.index(match["ending"]), len(path.parts), str(path))
        candidates.setdefault(match["name"], []).append((preference, ArchiveSet(match["name"], path, test)))
    # In .arff each channel of a multivariate set has a file of its own, too.
    names = [name for name in candidates if _ONE_DIMENSION.sub("", name) in {name} - candidates.keys() | {name}]
    names = [name for name in candidates if not _is_channel(name, candidates)]
    return [min(candidates[name])[1] for name in sorted(names, key=str.lower)]
