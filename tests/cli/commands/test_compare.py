"""`stablernn compare`: what it prints, and what it refuses before anything is trained."""

from __future__ import annotations

import pytest

from cli_helpers import Workplace


@pytest.mark.slow
def test_tables_and_mean_ranks_are_printed(tmp_path_factory: pytest.TempPathFactory) -> None:
    workplace = Workplace(tmp_path_factory.mktemp("compare"))
    words = ("compare", "--data", "digits", "--data", "co2", "--cells", "lipschitz,rnn", "--seeds", "0", "--epochs", 1)
    small = ("--set", "model.hidden_size=4", "--set", "training.batch_size=256")
    printed = workplace.ok(*words, *small)
    texts = ("test accuracy", "test mae", "Baselines of every run: ridge", "over 2 data sets", "contracting, rate")
    for text in (*texts, "No test is made"):
        assert text in printed.out
    assert "4 of 4: rnn on co2, seed 0" in printed.err
    # The plan and each run read the data.
    readings = [line for line in printed.err.splitlines() if "Reading" in line]
    assert readings == ["Reading digits ...", "Reading co2 ..."]
    assert "lipschitz on digits, seed 0: Scoring the best weights ..." in printed.err.splitlines()
    again = workplace.ok("compare --data digits", *words[5:], *small, "--json").json
    assert set(again["ranks"]["mean"]) == {"lipschitz", "rnn"}
    assert again["problems"]["digits"]["rows"][0]["rank"] == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--cells lru", "Missing option '--data'. See `stablernn data list` for the choices."),
        ("--data digits", "Missing option '--cells'. See `stablernn cells list` for the choices."),
        (
            "--data digits --cells lru --budget 9s --epochs 1",
            "--budget and --epochs exclude each other. Give only one of them.",
        ),
        (
            "--data digits --cells lru --seeds 0,0",
            "--seeds takes different whole numbers from 0, separated by commas, got '0,0'.",
        ),
        (
            "--data digits --cells lru --budget 100steps",
            "--budget takes a time, such as 90s or 2m, got '100steps'. Use --epochs for equal epochs.",
        ),
        ("--data digit --cells lru", "Unknown dataset or file 'digit'. Did you mean 'digits'?"),
        (
            "--data digits --cells lru --set model.cel=1",
            "Unknown key 'model.cel'. Did you mean 'model.cell'?",
        ),
    ],
)
def test_a_wrong_command_line_is_refused(workplace_folder: Workplace, words: str, sentence: str) -> None:
    result = workplace_folder(f"compare {words}")
    assert result.code != 0
    assert result.sentence.startswith(sentence)


@pytest.fixture(scope="module")
def workplace_folder(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("refused"))
