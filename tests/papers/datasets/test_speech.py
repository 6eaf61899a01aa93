"""Speech: the readers, the log-magnitudes, FSDD's and TIMIT's splits, on sounds made here."""

from __future__ import annotations

import hashlib
import io
import tarfile
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from named_helpers import at_home, entry, sha256
from stablernn.data import ClassificationData, dataset_info, load_data
from stablernn.data.step_data import StepData
from stablernn.errors import DataError
from stablernn_papers.datasets import timit
from stablernn_papers.datasets.audio import BINS, SILENCE, log_magnitudes, read_speech
from stablernn_papers.datasets.fsdd import recordings_digest

SAMPLES = (3000 * np.sin(np.arange(2000) * 0.3) + np.random.RandomState(0).normal(0, 50, 2000)).astype(np.int16)


def sphere(samples: np.ndarray, *, rate: int = 16000, order: str = "01", **fields: str) -> bytes:
    """A NIST SPHERE file."""
    header = {
        "sample_count": f"-i {len(samples)}",
        "sample_n_bytes": "-i 2",
        "channel_count": "-i 1",
        "sample_byte_format": f"-s2 {order}",
        "sample_rate": f"-i {rate}",
        "sample_coding": "-s3 pcm",
        **fields,
    }
    lines = ["NIST_1A", "   1024", *(f"{word} {value}" for word, value in header.items()), "end_head", ""]
    return "\n".join(lines).encode().ljust(1024) + samples.astype("<i2" if order == "01" else ">i2").tobytes()


def riff(samples: np.ndarray, *, rate: int = 8000, channels: int = 1, width: int = 2) -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return written.getvalue()


@pytest.mark.parametrize("content", [sphere(SAMPLES), sphere(SAMPLES, order="10"), riff(SAMPLES, rate=16000)])
def test_both_formats_give_the_samples(content: bytes) -> None:
    samples, rate = read_speech("s", content)
    np.testing.assert_array_equal(samples, SAMPLES)
    assert samples.dtype == np.int16
    assert rate == 16000


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (sphere(SAMPLES, sample_coding="-s26 pcm,embedded-shorten-v2.00"), r"shorten .*sph2pipe"),
        (sphere(SAMPLES, sample_coding="-s4 ulaw", sample_n_bytes="-i 1"), "1 of ulaw of 1"),
        (sphere(SAMPLES, channel_count="-i 2"), "2 of pcm of 2"),
        (sphere(SAMPLES, order="11"), "sample_byte_format 01 or 10, got 11"),
        (sphere(SAMPLES)[:-2], "truncated: its header says 2000 samples, it has 1999"),
        (b"NIST_1A\n   1024\nend_head\n", "sample_count"),
        (riff(SAMPLES, channels=2), "got 2 of 2"),
        (riff(SAMPLES)[:-2], "truncated"),
        (b"ID3\x03" + bytes(40), "neither a NIST SPHERE nor a RIFF"),
    ],
)
def test_other_sounds_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=rf"^'s' .*{reason}"):
        read_speech("s", content)


def slow_log_magnitudes(samples: np.ndarray) -> np.ndarray:
    """Frame by frame and bin by bin, from the definition."""
    padded = [0.0] * 256 + [sample / 32768 for sample in samples.tolist()] + [0.0] * 256
    window = [0.5 * (1 - np.cos(2 * np.pi * n / 256)) for n in range(256)]
    frames = []
    for start in range(0, len(padded) - 255, 128):
        frame = np.array(padded[start : start + 256]) * window
        bins = [abs(np.sum(frame * np.exp(-2j * np.pi * k * np.arange(256) / 256))) ** 2 for k in range(129)]
        frames.append(10 * np.log10(1e-5 + np.array(bins)))
    return np.array(frames)


def test_log_magnitudes_are_those_of_the_definition() -> None:
    found = log_magnitudes(SAMPLES, 8000)
    assert found.shape == (1 + (2000 + 512 - 256) // 128, BINS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, slow_log_magnitudes(SAMPLES), rtol=1e-5, atol=1e-4)
    assert (found[0] == SILENCE).all()


@pytest.mark.parametrize("rate", [16000, pytest.param(44100, marks=pytest.mark.slow)])
def test_a_tone_is_in_its_bin_whatever_the_rate(rate: int) -> None:
    tone = (20000 * np.sin(2 * np.pi * 1000 * np.arange(rate) / rate)).astype(np.int16)
    found = log_magnitudes(tone, rate)
    assert found.shape == (1 + (8000 + 256) // 128, BINS)
    # 1 kHz of 8 kHz in 256 bins.
    assert (found[10:50].argmax(axis=1) == 32).all()
    assert np.ptp(found[20:40, 32]) < 0.1


def tone(number: int, length: int) -> np.ndarray:
    return (1000 + 100 * number * np.sin(np.arange(length) * 0.01 * (number + 1))).astype(np.int16)


def spoken(speakers: tuple[str, ...] = ("anna", "bert"), count: int = 12) -> dict[str, bytes]:
    return {
        f"{digit}_{speaker}_{number}.wav": riff(tone(digit, 300 + 10 * number))
        for digit in range(10)
        for speaker in speakers
        for number in range(count)
    }


def packed(contents: dict[str, bytes], folder: str, mode: str) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode=mode) as file:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return written.getvalue()


@pytest.fixture(params=["folder", "gz"])
def digits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """FSDD with two speakers, as a folder, as it is packed elsewhere, and as its home packs it."""
    folder = at_home(monkeypatch, tmp_path) / "fsdd"
    folder.mkdir()
    contents = spoken()
    if request.param == "folder":
        path = folder / "recordings"
        path.mkdir()
        for name, content in contents.items():
            (path / name).write_bytes(content)
    else:
        path = folder / "recordings.tar.gz"
        path.write_bytes(
            packed({**contents, "../README.md": b"x"}, "free-spoken-digit-dataset-26eb9aa/recordings", "w:gz")
        )
    # The hash of the same recordings, whatever holds them.
    lines = [f"{hashlib.sha256(contents[name]).hexdigest()} {name}\n" for name in sorted(contents)]
    checksum = sha256("".join(lines).encode())
    for key in ("fsdd", "fsdd-frames"):
        info = dataset_info(key)
        entry(monkeypatch, replace(info, files=(replace(info.files[0], checksum=checksum),)))
    return path


def test_spoken_digits_are_split_by_number(digits: Path) -> None:
    data = load_data("fsdd")
    assert isinstance(data, ClassificationData)
    assert data.test is not None
    assert data.notes["sequences"] == {"train": 40, "validation": 100, "test": 100}
    for split, numbers in ((data.test, range(5)), (data.validation, range(5, 10)), (data.train, range(10, 12))):
        assert {name.split("_")[2] for name in split.ids} == {str(number) for number in numbers}
        assert [data.labels[y] for y in split.y] == [name[0] for name in split.ids]
    place = data.train.ids.index("7_bert_11")
    np.testing.assert_array_equal(data.train.sequences()[place], log_magnitudes(tone(7, 410), 8000))
    samples = data.train.gather([place, 0])
    assert samples.x.shape == (2, 6, BINS)
    assert data.notes["variant"] == "spectrogram"


def test_spoken_digits_as_waveforms(digits: Path) -> None:
    data = load_data("fsdd", variant="waveform")
    assert isinstance(data, ClassificationData)
    assert data.features == ("sample",)
    place = data.train.ids.index("3_anna_10")
    expected = (tone(3, 400) / 32768).astype(np.float32)[:, None]
    np.testing.assert_array_equal(data.train.gather([place]).x[0], expected)


def test_the_frames_of_spoken_digits_are_shifted_by_one(digits: Path) -> None:
    data = load_data("fsdd-frames")
    assert isinstance(data, StepData)
    assert (data.output, data.headline, data.continuous) == ("real", "mse", False)
    assert data.notes["sequences"] == {"train": 40, "validation": 100, "test": 100}
    labeled = load_data("fsdd")
    assert isinstance(labeled, ClassificationData)
    for index, spectrum in ((0, labeled.train.sequences()[0]), (7, labeled.train.sequences()[7])):
        sample = data.train.gather([index])
        np.testing.assert_array_equal(sample.x[0], spectrum[:-1])
        np.testing.assert_array_equal(sample.y[0], spectrum[1:])


def test_other_recordings_are_refused(digits: Path) -> None:
    if digits.is_dir():
        (digits / "0_anna_0.wav").write_bytes(riff(tone(1, 300)))
    else:
        contents = {**spoken(), "0_anna_0.wav": riff(tone(1, 300))}
        digits.write_bytes(packed(contents, "recordings", f"w:{digits.suffix[1:]}"))
    with pytest.raises(DataError, match=rf"^'fsdd': '{digits.name}' is not what was published \(sha256:"):
        load_data("fsdd")


def test_recordings_that_are_cut_off_are_refused(digits: Path) -> None:
    if digits.is_dir():
        pytest.skip("a folder is not cut off")
    digits.write_bytes(digits.read_bytes()[:-200])
    with pytest.raises(DataError, match=rf"^'{digits.name}' is truncated or not a tar archive \("):
        recordings_digest(digits)


# Speakers of the three groups, with a training speaker whose name holds "sa".
SPEAKERS = {"train": ("fcjf0", "msat0"), "test": ("mdab0", "faks0", "mzzz0")}
SENTENCES = ("sa1", "sa2", "si100", "sx10")


def corpus(folder: Path, *, is_converted: bool = False) -> None:
    """A tree as that of LDC93S1."""
    for part, speakers in SPEAKERS.items():
        for speaker in speakers:
            for number, sentence in enumerate(SENTENCES):
                samples = tone(number + len(speaker), 4000 + 400 * number)
                name = f"{part}/dr1/{speaker}/{sentence}.wav"
                path = folder / (name if is_converted else name.upper())
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(riff(samples, rate=16000) if is_converted else sphere(samples))
                path.with_suffix(".PHN").write_text("0 100 h#")


def followed(**options: Any) -> StepData:
    data = load_data("timit", **options)
    assert isinstance(data, StepData)
    return data


def test_timit_predicts_the_next_frame(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    corpus(at_home(monkeypatch, tmp_path) / "TIMIT")
    data = followed(partial=True)
    assert (data.output, data.headline, len(data.features), data.tokens) == ("real", "mse", 129, False)
    assert data.notes["sequences"] == {"train": 4, "validation": 2, "test": 2}
    assert data.notes["speakers"] == {"train": "train", "validation": "development", "test": "core"}
    # All ten sentences "sa", and the other two of the test speaker who is in neither list.
    assert data.notes["utterances_left_out"] == 12
    samples = data.test.gather([0])
    frames = log_magnitudes(tone(7, 4800), 16000)
    np.testing.assert_array_equal(samples.x[0], frames)
    np.testing.assert_array_equal(samples.y[0, :-1], frames[1:])
    assert (samples.y[0, -1] == SILENCE).all()


def test_timit_as_released_recalls_the_frame_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    corpus(at_home(monkeypatch, tmp_path) / "TIMIT")
    data = followed(partial=True, variant="released-recall")
    # The speaker msat0 vanishes with her sentences, and the roles of the two test groups are swapped.
    assert data.notes["sequences"] == {"train": 2, "validation": 2, "test": 2}
    assert data.notes["speakers"] == {"train": "train", "validation": "core", "test": "development"}
    samples, predicted = data.validation.gather([0]), followed(partial=True).test.gather([0])
    np.testing.assert_array_equal(samples.y, predicted.x)
    np.testing.assert_array_equal(samples.x, predicted.y)
    assert data.fingerprint != followed(partial=True).fingerprint


def test_copies_of_timit_differ_in_case_and_format(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = at_home(monkeypatch, tmp_path)
    corpus(folder / "TIMIT")
    expected = followed(partial=True).fingerprint
    (folder / "TIMIT").rename(tmp_path / "first")
    corpus(folder / "timit" / "sally" / "raw", is_converted=True)
    assert followed(partial=True).fingerprint == expected


def test_a_folder_named_like_a_sentence_left_out_is_none_of_the_corpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The released recipe looks for "sa" anywhere in a path; where the user keeps the corpus must not matter.
    corpus(at_home(monkeypatch, tmp_path) / "timit" / "sa")
    assert followed(partial=True, variant="released-recall").notes["sequences"]["train"] == 2


def test_an_utterance_that_lies_there_twice_is_taken_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = at_home(monkeypatch, tmp_path) / "TIMIT"
    corpus(folder)
    for path in list(folder.rglob("*.WAV")):
        path.with_name(path.name + ".wav").write_bytes(riff(read_speech("s", path.read_bytes())[0], rate=16000))
    assert followed(partial=True).notes["sequences"] == {"train": 4, "validation": 2, "test": 2}


def test_a_corpus_in_part_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    corpus(at_home(monkeypatch, tmp_path) / "TIMIT")
    with pytest.raises(
        DataError, match=r"train has 4 of 3696 utterances, development has 2 of 400 .*data\.partial=true"
    ):
        load_data("timit")
    assert len(followed(partial=True).notes["partial"]) == 3
    monkeypatch.setattr(timit, "COUNTS", (4, 2, 2))
    assert "partial" not in followed().notes


def test_lists_of_speakers_are_as_published() -> None:
    assert (len(timit.CORE), len(timit.DEVELOPMENT)) == (24, 50)
    assert not timit.CORE & timit.DEVELOPMENT
    # Eight utterances each beside the two that are left out: the published 192 and 400.
    assert (8 * len(timit.CORE), 8 * len(timit.DEVELOPMENT)) == timit.COUNTS[:0:-1]
    # Eight regions with two men and a woman.
    assert sum(name[0] == "f" for name in timit.CORE) == 8
    assert timit.COUNTS[0] - timit.RECALL_COUNTS[0] == 7 * 8
    assert not any("sa" in name for name in timit.CORE | timit.DEVELOPMENT)
