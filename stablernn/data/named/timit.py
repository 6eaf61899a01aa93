"""TIMIT's log-magnitudes, frame by frame, from the user's own copy; nothing of it is shipped or fetched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stablernn import errors
from stablernn.data.arrays import SPLITS, Float32Array, SplitName
from stablernn.data.fingerprint import fingerprint
from stablernn.data.messages import format_names
from stablernn.data.named.audio import BINS, SILENCE, log_magnitudes, read_speech
from stablernn.data.named.entry import DatasetInfo, Request
from stablernn.data.named.places import DataFile
from stablernn.data.step_data import StepData, StoredSteps

# Two men and a woman of each of the eight dialect regions.
_CORE = """
mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0
mbpm0 mklt0 fnlp0 mcmj0 mjdh0 fmgd0 mgrt0 mnjm0 fdhc0 mjln0 mpam0 fmld0
"""
# The fifty other test speakers on which recognizers are usually tuned.
_DEVELOPMENT = """
faks0 fdac1 fjem0 mgwt0 mjar0 mmdb1 mmdm2 mpdf0 fcmh0 fkms0 mbdg0 mbwm0 mcsh0 fadg0 fdms0 fedw0 mgjf0
mglb0 mrtk0 mtaa0 mtdt0 mthc0 mwjg0 fnmr0 frew0 fsem0 mbns0 mmjr0 mdls0 mdlf0 mdvc0 mers0 fmah0 fdrw0
mrcs0 mrjm4 fcal1 mmwh0 fjsj0 majc0 mjsw0 mreb0 fgjd0 fjmg0 mroa0 mteb0 mjfc0 mrjr0 fmml0 mrws1
"""
CORE = frozenset(_CORE.split())
DEVELOPMENT = frozenset(_DEVELOPMENT.split())
#: Utterances of training, development and core test.
COUNTS = (3696, 400, 192)
#: The same in the released recipe, which drops speakers with "sa" in their name too.
RECALL_COUNTS = (3640, 400, 192)

# SA1.WAV, and SA1.WAV.wav as copies have it whose SPHERE files were converted.
_UTTERANCE = re.compile(r"(?:.*/)?(train|test)/(dr[1-8])/([mf][a-z]{3}\d)/(s[aix]\d+)(?:\.wav)+")


class Utterance(NamedTuple):
    part: str
    region: str
    speaker: str
    sentence: str
    path: Path


def utterances(folder: Path) -> list[Utterance]:
    """All utterances below a folder, each once, in the order of their names."""
    found: dict[tuple[str, str, str, str], Utterance] = {}
    for path in sorted(folder.rglob("*")):
        match = _UTTERANCE.fullmatch(path.relative_to(folder).as_posix().lower())
        if match is not None and path.is_file():
            part, region, speaker, sentence = match.groups()
            # Copies may hold SA1.WAV and SA1.WAV.wav; both are read, and the first will do.
            found.setdefault((part, region, speaker, sentence), Utterance(part, region, speaker, sentence, path))
    return [found[words] for words in sorted(found)]


def chosen(found: Sequence[Utterance], *, recall: bool) -> dict[str, list[Utterance]]:
    """The utterances of training, development and core test.

    Sentences "sa", which every speaker reads, are left out. The released recipe leaves out everything whose path has
    "sa" anywhere, and so seven training speakers.
    """

    def kept(one: Utterance) -> bool:
        tested = "/".join(one[:4]) if recall else one.sentence
        return "sa" not in tested

    rest = [one for one in found if kept(one)]
    return {
        "train": [one for one in rest if one.part == "train"],
        "development": [one for one in rest if one.part == "test" and one.speaker in DEVELOPMENT],
        "core": [one for one in rest if one.part == "test" and one.speaker in CORE],
    }


def load(request: Request) -> StepData:
    """Log-magnitudes (frames, 129) and what is to be said at each frame.

    "predict": the next frame; behind the last is a frame of silence, -50 dB. "released-recall": the recipe that
    released code documents: input is the frame after the target, so the frame before is to be recalled; validation is
    the core test and test the development set there.
    """
    (file,) = request.info.files
    folder = request.paths[file.name]
    recall = request.variant == "released-recall"
    found = utterances(folder)
    groups = chosen(found, recall=recall)
    missing = _missing(groups, RECALL_COUNTS if recall else COUNTS)
    if missing and not (request.options.partial and all(groups.values())):
        raise errors.DataError(
            f"'timit': '{folder}' is not the whole of it: {format_names(missing)}. It must hold "
            "TRAIN and TEST with DR1 to DR8, as LDC93S1 does; --set data.partial=true takes what is there."
        )
    roles = ("train", "core", "development") if recall else ("train", "development", "core")
    splits: dict[SplitName, StoredSteps] = {
        split: _steps(groups[role], recall=recall) for split, role in zip(SPLITS, roles, strict=True)
    }
    bins = tuple(f"bin_{index}" for index in range(BINS))
    frames = {split: int(part.lengths.sum()) for split, part in splits.items()}
    used = sum(len(group) for group in groups.values())
    contents = [array for part in splits.values() for array in (*part.inputs, *part.targets)]
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
            "sequences": {split: len(part) for split, part in splits.items()},
            "frames": frames,
            "speakers": dict(zip(SPLITS, roles, strict=True)),
            "utterances_left_out": len(found) - used,
            "variant": request.variant,
            **({"partial": missing} if missing else {}),
        },
        fingerprint=fingerprint(["named", "timit", request.variant, *contents]),
    )


def _missing(groups: dict[str, list[Utterance]], counts: Sequence[int]) -> list[str]:
    return [
        f"{name} has {len(group)} of {count} utterances"
        for (name, group), count in zip(groups.items(), counts, strict=True)
        if len(group) != count
    ]


def _steps(group: Sequence[Utterance], *, recall: bool) -> StoredSteps:
    extended = [_with_silence(one.path) for one in group]
    earlier, later = [frames[:-1] for frames in extended], [frames[1:] for frames in extended]
    return StoredSteps(later, earlier) if recall else StoredSteps(earlier, later)


def _with_silence(path: Path) -> Float32Array:
    samples, rate = read_speech(path.name, path.read_bytes())
    frames = log_magnitudes(samples, rate)
    return np.concatenate([frames, np.full((1, BINS), SILENCE, np.float32)])


DATASETS = (
    DatasetInfo(
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
    ),
)
