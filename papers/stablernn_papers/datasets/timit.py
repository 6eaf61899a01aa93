"""Log-magnitude frames of TIMIT from the user's own copy; nothing of it is shipped or downloaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stablernn import errors
from stablernn.data.arrays import SPLITS, Float32Array, SplitName, fingerprint
from stablernn.data.messages import format_names
from stablernn.data.named.entry import DatasetInfo, Request
from stablernn.data.named.places import DataFile
from stablernn.data.step_data import StepData, StoredSteps
from stablernn_papers.datasets.audio import BINS, SILENCE, log_magnitudes, read_speech

# Core test set: two men and a woman of each of the eight dialect regions.
_CORE = """
mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0
mbpm0 mklt0 fnlp0 mcmj0 mjdh0 fmgd0 mgrt0 mnjm0 fdhc0 mjln0 mpam0 fmld0
"""
# Development set: the fifty other test speakers on which recognizers are usually tuned.
_DEVELOPMENT = """
faks0 fdac1 fjem0 mgwt0 mjar0 mmdb1 mmdm2 mpdf0 fcmh0 fkms0 mbdg0 mbwm0 mcsh0 fadg0 fdms0 fedw0 mgjf0
mglb0 mrtk0 mtaa0 mtdt0 mthc0 mwjg0 fnmr0 frew0 fsem0 mbns0 mmjr0 mdls0 mdlf0 mdvc0 mers0 fmah0 fdrw0
mrcs0 mrjm4 fcal1 mmwh0 fjsj0 majc0 mjsw0 mreb0 fgjd0 fjmg0 mroa0 mteb0 mjfc0 mrjr0 fmml0 mrws1
"""
CORE = frozenset(_CORE.split())
DEVELOPMENT = frozenset(_DEVELOPMENT.split())
#: Numbers of utterances in training, development and core test set.
COUNTS = (3696, 400, 192)
#: Numbers in the released recipe, which also drops speakers with "sa" in their name.
RECALL_COUNTS = (3640, 400, 192)

# SA1.WAV, or SA1.WAV.wav in copies whose SPHERE files were converted.
_UTTERANCE = re.compile(r"(?:.*/)?(train|test)/(dr[1-8])/([mf][a-z]{3}\d)/(s[aix]\d+)(?:\.wav)+")


class Utterance(NamedTuple):
    """The parts of the path of a recording, in lower case, and the path itself."""

    part: str
    region: str
    speaker: str
    sentence: str
    path: Path


def utterances(folder: Path) -> list[Utterance]:
    """Return all utterances below a folder, without duplicates, in the order of their names."""
    by_name: dict[tuple[str, str, str, str], Utterance] = {}
    for path in sorted(folder.rglob("*")):
        match = _UTTERANCE.fullmatch(path.relative_to(folder).as_posix().lower())
        if match is not None and path.is_file():
            part, region, speaker, sentence = match.groups()
            # Copies may contain both SA1.WAV and SA1.WAV.wav; the first one is used.
            by_name.setdefault((part, region, speaker, sentence), Utterance(part, region, speaker, sentence, path))
    return [by_name[name] for name in sorted(by_name)]


def group_utterances(all_utterances: Sequence[Utterance], *, recall: bool) -> dict[str, list[Utterance]]:
    """Return the utterances of the training, development and core test set.

    Sentences "sa", which every speaker reads, are left out. The released recipe leaves out every path that contains
    "sa", and therefore seven training speakers.
    """

    def is_included(utterance: Utterance) -> bool:
        searched_text = "/".join(utterance[:4]) if recall else utterance.sentence
        return "sa" not in searched_text

    included = [utterance for utterance in all_utterances if is_included(utterance)]
    test = [utterance for utterance in included if utterance.part == "test"]
    return {
        "train": [utterance for utterance in included if utterance.part == "train"],
        "development": [utterance for utterance in test if utterance.speaker in DEVELOPMENT],
        "core": [utterance for utterance in test if utterance.speaker in CORE],
    }


def load(request: Request) -> StepData:
    """Load log-magnitudes (frames, 129) and the target of each frame.

    "predict": the target is the next frame; a frame of silence, -50 dB, follows the last one. "released-recall": the
    recipe documented by released code: the target is the previous frame, which has to be recalled; validation is the
    core test set there, and test is the development set.
    """
    (file,) = request.info.files
    folder = request.paths[file.name]
    recall = request.variant == "released-recall"
    all_utterances = utterances(folder)
    groups = group_utterances(all_utterances, recall=recall)
    missing = _missing_utterances(groups, RECALL_COUNTS if recall else COUNTS)
    if missing and not (request.options.partial and all(groups.values())):
        raise errors.DataError(
            f"'timit': '{folder}' is incomplete: {format_names(missing)}. It must contain "
            "TRAIN and TEST with DR1 to DR8, as LDC93S1 does; --set data.partial=true takes what is there."
        )
    roles = ("train", "core", "development") if recall else ("train", "development", "core")
    splits: dict[SplitName, StoredSteps] = {
        split: _load_frames(groups[role], recall=recall) for split, role in zip(SPLITS, roles, strict=True)
    }
    bins = tuple(f"bin_{index}" for index in range(BINS))
    frames = {split: int(stored.lengths.sum()) for split, stored in splits.items()}
    used_count = sum(len(group) for group in groups.values())
    contents = [array for stored in splits.values() for array in (*stored.inputs, *stored.targets)]
    return StepData(
        name="timit",
        output="real",
        tokens=False,
        features=bins,
        outputs=bins,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        continuous=False,
        headline="mse",
        notes={
            "sequences": {split: len(stored) for split, stored in splits.items()},
            "frames": frames,
            "speakers": dict(zip(SPLITS, roles, strict=True)),
            "utterances_left_out": len(all_utterances) - used_count,
            "variant": request.variant,
            **({"partial": missing} if missing else {}),
        },
        fingerprint=fingerprint(["named", "timit", request.variant, *contents]),
    )


def _missing_utterances(groups: dict[str, list[Utterance]], counts: Sequence[int]) -> list[str]:
    return [
        f"{name} has {len(group)} of {count} utterances"
        for (name, group), count in zip(groups.items(), counts, strict=True)
        if len(group) != count
    ]


def _load_frames(group: Sequence[Utterance], *, recall: bool) -> StoredSteps:
    sequences = [_with_silence(utterance.path) for utterance in group]
    # Inputs and targets are the same frames, shifted by one.
    earlier, later = [frames[:-1] for frames in sequences], [frames[1:] for frames in sequences]
    return StoredSteps(later, earlier) if recall else StoredSteps(earlier, later)


def _with_silence(path: Path) -> Float32Array:
    samples, rate = read_speech(path.name, path.read_bytes())
    frames = log_magnitudes(samples, rate)
    return np.concatenate([frames, np.full((1, BINS), SILENCE, np.float32)])


TIMIT = DatasetInfo(
    key="timit",
    title="TIMIT speech, 129 log-magnitudes a frame (your own copy)",
    task="predict-next",
    licence="LDC93S1, each user needs an own copy",
    source="J. Garofolo et al., TIMIT Acoustic-Phonetic Continuous Speech Corpus, LDC93S1",
    splits="3,696 utterances train, 400 of 50 speakers validate, the core test of 192 is test",
    files=(DataFile("timit", also=("TIMIT", "LDC93S1", "timit_LDC93S1"), packed=False),),
    folders=(".",),
    variants=("predict", "released-recall"),
    options=("partial",),
    load=load,
    obtain="The Linguistic Data Consortium has it: catalog.ldc.upenn.edu/LDC93S1.",
)
