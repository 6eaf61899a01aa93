"""``docs/long_memory.md`` and its images, from what ``long_memory.py`` measured."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from long_memory_settings import EVALUATE_EVERY, HELD_OUT, NOTES, SHARE, TASKS, Settings

PAGE = Path(__file__).parents[1] / "docs" / "long_memory.md"
OLDER_DRAW = (
    " The sequences of these runs were drawn by torch's generator. A run of today draws those of the library's tasks "
    "`copy` and `adding` by numpy's: the same tasks, other sequences."
)
HEADINGS = {"copy": "Copy, 100 blanks", "adding": "Adding, 200 steps"}
DESCRIPTIONS = {
    "copy": "Ten symbols out of eight, 99 blanks, a marker, ten blanks; the answer is 110 blanks, then the ten "
    "symbols. Input one-hot in 10, output 9 classes, cross entropy averaged over all 120 steps; the baseline, "
    '10 ln 8 / 120 = .173, answers with blanks and then guesses. "Last ten right" is the share of the ten symbols at '
    "the last evaluation.",
    "adding": "At each step a number in [0, 1] and a flag, set once in each half; the answer, after the last step, is "
    "the sum of the two flagged numbers. Mean squared error; the baseline, 1/6, always answers 1.",
}
ALTERNATIVES = {
    "copy": "Held-out loss on the copy task against iterations, one curve a run",
    "adding": "Held-out loss on the adding task against iterations, one curve a run",
}
LABELS = {"copy": "cross entropy, held out", "adding": "mean squared error, held out"}
# Okabe and Ito's set, which the colour-blind can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00")


def write_page(results: dict[str, Any]) -> None:
    """Write ``docs/long_memory.md`` and one image for each task."""
    runs: list[dict[str, Any]] = results["runs"]
    first = runs[0]
    hours = sum(row["seconds"] for row in runs) / 3600
    lines = [
        "# Long memory",
        "",
        "Written by `python benchmarks/long_memory.py --page` from `benchmarks/results/long_memory.json`; do not edit "
        "by hand.",
        "",
        "Which cells learn to remember over 100 and 200 steps is settled here by training them. The loss is that on "
        f"{HELD_OUT} held-out sequences, every {EVALUATE_EVERY} iterations. A run has reached its goal at the first of "
        "two evaluations in a row that are below a tenth of the memoryless baseline, the loss of the best answer that "
        "remembers nothing, and stops there. Each iteration draws fresh random sequences, so there is no "
        f"training set to learn by heart. Seeds run: {', '.join(map(str, sorted({row['seed'] for row in runs})))}."
        + ("" if all("random" in row for row in runs) else OLDER_DRAW),
        "",
        "    " + "\n    ".join(dict.fromkeys(row["command"] for row in runs)),
        "    python benchmarks/long_memory.py --page",
        "",
        f"{first['processor']}, {first['cores']} cores, {first['system']}; torch {first['torch']}, "
        f"Python {first['python']}; one thread a run; "
        f"{hours:.1f} hours of processor time for all of it. The settings are `SETTINGS` in "
        "`benchmarks/long_memory_settings.py`.",
        "",
    ]
    for task, group in groupby(runs, lambda row: str(row["task"])):
        rows = list(group)
        lines += [
            f"## {HEADINGS[task]}",
            "",
            DESCRIPTIONS[task],
            "",
            f"![{ALTERNATIVES[task]}](images/long_memory_{task}.svg)",
            "",
        ]
        lines += _results_table(rows) + [""] + _settings_table(rows) + [""]
        notes = [f"- `{cell}`: {note}" for (where, cell), note in NOTES.items() if where == task]
        lines += notes + [""] if notes else []
        draw(task, rows, PAGE.parent / "images" / f"long_memory_{task}.svg")
    PAGE.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


def _results_table(rows: list[dict[str, Any]]) -> list[str]:
    copying = rows[0]["task"] == "copy"
    header = ["cell", "seed", "iterations to a tenth", "best loss / baseline", "seconds", "parameters"]
    body = [
        [
            f"`{row['cell']}`",
            str(row["seed"]),
            f"{row['reached']:,}" if row["reached"] is not None else f"not in {row['iterations']:,}",
            f"{row['best_ratio']:.3f}",
            f"{row['seconds']:.0f}",
            f"{row['parameters']:,}",
            *([f"{100 * row['accuracy']:.1f} %"] if copying else []),
        ]
        for row in rows
    ]
    return _table(header + (["last ten right"] if copying else []), body)


def _settings_table(rows: list[dict[str, Any]]) -> list[str]:
    body = []
    for cell, group in groupby(rows, lambda row: str(row["cell"])):
        settings = Settings(**next(group)["settings"])
        options = ", ".join(f"{name} {value}" for name, value in settings.options.items())
        if settings.input_gain != 1:
            options += f"{', ' if options else ''}first input weights times {settings.input_gain:g}"
        rates = f"{settings.lr:g}"
        if settings.lr_orthogonal != settings.lr:
            rates += f"; orthogonal {settings.lr_orthogonal:g}"
        optimizer = {"adam": "Adam", "rmsprop": "RMSprop"}[settings.optimizer]
        clip = f"{settings.clip:g}" if settings.clip else "-"
        body.append(
            [
                f"`{cell}`",
                str(settings.hidden),
                optimizer,
                rates,
                str(settings.batch),
                clip,
                options or "-",
                settings.source,
            ]
        )
    return _table(
        ["cell", "hidden size", "optimizer", "learning rate", "batch", "clip norm", "options", "source"], body
    )


def _label(axes: Any, ends: list[tuple[int, float, str, str]], levels: list[Any]) -> None:
    """Write each curve's name at its end, moved up or down where it would cover another or what ``levels`` are."""
    from matplotlib.patheffects import withStroke
    from matplotlib.text import Text

    figure = axes.figure
    figure.canvas.draw()
    taken: list[Any] = [artist.get_window_extent(figure.canvas.get_renderer()).padded(2) for artist in levels]
    for step, loss, cell, colour in sorted(ends):
        shifts = sorted(range(-91, 92, 13), key=abs)
        for shift in shifts:
            words = axes.annotate(
                cell,
                (step, loss),
                xytext=(8, shift - 4),
                textcoords="offset points",
                color=colour,
                fontweight="bold",
                path_effects=[withStroke(linewidth=3, foreground="white")],
                arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6} if shift else None,
            )
            # Of the words alone: the annotation's own extent holds its leader, which starts on the curve.
            words.update_positions(figure.canvas.get_renderer())
            box = Text.get_window_extent(words, figure.canvas.get_renderer())
            if shift == shifts[-1] or not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            words.remove()


def draw(task: str, rows: list[dict[str, Any]], path: Path) -> None:
    """The loss curves of all runs of one task, as an SVG."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": task, "font.size": 10})
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    last: dict[str, tuple[int, float]] = {}
    for row in rows:
        points = [(step, loss) for step, loss in row["curve"] if loss is not None]
        colour = COLOURS[cells.index(row["cell"]) % len(COLOURS)]
        axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.4)
        axes.plot(*points[-1], "o", color=colour, markersize=3.5)
        last[row["cell"]] = max(last.get(row["cell"], (-1, 0.0)), points[-1])
    baseline = TASKS[task].baseline
    levels: list[Any] = []
    for level, words in ((baseline, "memoryless baseline"), (SHARE * baseline, "a tenth of it")):
        levels.append(axes.axhline(level, color="#666666", linewidth=0.9, linestyle="--"))
        note = axes.annotate(
            words,
            (1, level),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
            color="#444444",
            fontsize=9,
        )
        levels.append(note)
    axes.set(yscale="log", xlabel="iterations", ylabel=LABELS[task])
    axes.margins(x=0.1)
    _label(axes, [(*place, cell, COLOURS[cells.index(cell) % len(COLOURS)]) for cell, place in last.items()], levels)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
