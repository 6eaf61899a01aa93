from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.image import imread

from cli_helpers import Workplace


def ink(path: Path) -> float:
    """Share of the picture that is not background."""
    return float((imread(path)[..., :3] < 0.98).any(axis=-1).mean())


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("load-run", "forecast"),
        ("digits:1", "confusion"),
        ("digits:1", "reliability"),
        ("digits-run", "early"),
        ("digits-run", "loss"),
        ("load-run", "metric"),
    ],
)
def test_every_kind_of_picture(trained: Workplace, tmp_path: Path, target: str, kind: str) -> None:
    path = tmp_path / "picture.png"
    result = trained.ok(f"plot {target} --kind {kind} --output {path}")
    assert result.out == ""
    assert result.err.splitlines()[-1] == f"Wrote {path}."
    assert ink(path) > 0.005


def test_the_last_window_is_drawn_unless_one_is_named(trained: Workplace, tmp_path: Path) -> None:
    def draw(name: str, *options: object) -> dict:
        return trained.ok("-q plot load-run", *options, "--output", tmp_path / name, "--json").json

    last, named, first = draw("a.png"), draw("b.png", "--window", 19), draw("c.png", "--window", 1)
    assert (last["window"], last["windows"], last["series"]) == (19, 19, "load")
    assert first["window"] == 1
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "c.png").read_bytes()
    assert named == last | {"output": named["output"]}
    other = draw("d.png", "--channel", "power", "--series", "load")
    assert other["series"] == "load"
    assert (tmp_path / "d.png").read_bytes() != (tmp_path / "a.png").read_bytes()


BAD: dict[str, tuple[tuple[object, ...], int, str]] = {
    "ending": ("load --output p.jpg", 2, "--output must end in .png, got 'p.jpg'."),
    "folder": (
        "load --output gone/p.png",
        2,
        "There is no folder 'gone'. Make it, or choose another --output.",
    ),
    "kind": (
        "load --kind early --output p.png",
        2,
        "--kind must be one of forecast, loss, metric for the task 'forecast' of load:1, got early.",
    ),
    "curve of a version": (
        "load --kind loss --output p.png",
        2,
        "--kind loss needs a run directory, got 'load'. Name the run that it was exported from.",
    ),
    "series of classes": (
        "digits --series a --output p.png",
        2,
        "--series, --window and --channel are for forecasts, and digits:1 classifies.",
    ),
    "series": ("load --series laod --output p.png", 2, "Unknown series 'laod'. Did you mean 'load'? "),
    "channel": (
        "load --channel wind --output p.png",
        2,
        "Unknown target 'wind'. 'load.csv' forecasts heat, power.",
    ),
    "window": (
        "load --window 20 --output p.png",
        2,
        "--window must be from 1 to 19, the windows of 'load', got 20.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_drawn(workplace: Workplace, case: str) -> None:
    arguments, code, sentence = BAD[case]
    result = workplace(f"plot {arguments}")
    assert result.sentence.startswith(sentence)
    assert result.code == code
    assert not workplace.path("p.png").exists()


def test_a_run_without_an_epoch_has_no_curve(workplace: Workplace) -> None:
    (workplace.path("load-run") / "metrics.jsonl").unlink()
    assert (
        workplace.refusal("plot load-run --kind loss --output p.png", code=1)
        == "The run in 'load-run' has no epochs yet: there is nothing to draw."
    )


def test_a_series_without_truth_has_no_window(workplace: Workplace) -> None:
    header, *lines = workplace.path("load.csv").read_text().splitlines()
    dates = [line.split(",")[0] for line in lines[-60:]]
    silent = [*lines[:-60], *(f"{date},,,1" for date in dates)]
    rows = [f"{name},{line}" for name, part in (("loud", lines), ("silent", silent)) for line in part]
    workplace.path("two.csv").write_text("\n".join([f"unique_id,{header}", *rows]))
    sentence = workplace.refusal("plot load --data two.csv --series silent --output p.png")
    assert sentence == "The series 'silent' has no window in the split 'test'. Choose another."
    assert not workplace.path("p.png").exists()
