"""``docs/gpu.md``, and what ``docs/performance.md`` says of GPUs, from what ``gpu.py`` measured."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
MAIN = "antisymmetric B=128 T=784 N=128"
"""The table that the goals are about."""
LONG = "rnn B=1 T=65,536 N=64"
"""The long sequence that the goals are about."""
NOT_MEASURED = "not measured"
TERABYTES_PER_SECOND = {"NVIDIA H200": 4.8, "NVIDIA H100 80GB HBM3": 3.35}
"""Bandwidth of the memory of a GPU, from the maker's data sheets."""
INTRODUCTION = """\
On a GPU the engine `triton` trains cells of the families plain, residual, two-stage and shared gate: a whole sequence
is one kernel, forward and back, in which the recurrent matrices stay on chip, in registers or shared memory. `auto`
takes it. Install it with `pip install -e '.[gpu]'` in the checkout (Linux, an NVIDIA GPU of compute
capability 8 or higher).

| engine | operands of products | matrices stay on chip up to |
| --- | --- | --- |
| `triton` | float32 as it is; `auto` takes this one | 128 units |
| `triton-tf32` | rounded to tf32, 10 bits after the point, for the tensor cores | 128 units |
| `triton-bf16` | rounded to bfloat16, 7 bits after the point, for the tensor cores | 256 units |

States, activations, sums and gradients are float32 in each. `--engine triton-tf32` of `train` selects one, or
`model.engine` in a configuration. Larger matrices are read again at every step, up to 512 units; beyond that `auto`
takes the engine of all other cells. `lstm`, `gru` and, without the package triton, `rnn` run by cuDNN (engine
`torch-rnn`), in float32 without the rounding to tf32 that torch allows there by default. All other cells, and padded
batches of `lstm` and `gru`, run by the engine `cuda-graph`: the loop, recorded once for each shape of a batch, so that
the GPU gets all kernels of a sequence at once. It records a shape in its third run, of up to 4,096 steps, and keeps
the eight shapes of a cell that were used last. Second derivatives and, with `triton`, gradients by `dt` come from the
loop, and so does everything that `cuda-graph` would record in a training of several processes.

Replays of `cuda-graph` may come from any thread and stream. Those on one GPU run one after the other, since they write
the buffers of their recordings and may share workspaces of libraries: each waits for an event at the end of the last
one. Before a cell is recorded, two steps are searched for operations that wait for the GPU, such as `item()` or
indexing by a mask; such a cell runs in the loop, and a warning names the operation. If a recording fails all the same,
the stream that was current before is current again, torch's allocator is told that the recording and its use of the
pool have ended, and the random generator gets a copy of its state that belongs to no recording, without which torch
2.11 refuses to draw random numbers from then on
([pytorch#171263](https://github.com/pytorch/pytorch/issues/171263)). Inside a recording of somebody else, forward and
backward pass are those of the loop, whose kernels become part of it. `pytest -m gpu tests/engines` tests all of this.

`lru`, `mingru` and `minlstm` (engine `scan`) run by a kernel of Triton as well, in which each unit goes through all
steps by itself; the backward pass also sums the gradient of a constant decay. Without the package triton they take
about 3 sqrt(time) operations on chunks of time.

`train` records the forward and backward pass of a minibatch as one CUDA graph, where the engine is `triton`, `scan` or,
without padding, `torch-rnn`. The first two passes of a shape run as they are, the third is recorded, up to 16 shapes,
which share their memory. It then draws the next minibatch while the GPU is at work. Losses, gradients and random
numbers are those of passes that are not recorded. A pass that waits for the GPU, as a check of tokens or of `dt` does,
cannot be recorded, nor can one that draws random numbers on the CPU, or draws any and computes states again
(`training.recompute_every`). The reason is logged, and no pass of the run is recorded from then on. Passes of several
processes are not recorded either. A recorded pass runs the padding of its sequences, too, since their lengths are not
read; others are cut into parts of time over which fewer sequences run. `pytest -m gpu tests/training/batches` compares
trainings with and without recordings.

An epoch of pixel MNIST took 3.9 s by the code before recordings and 2.7 s with them on one H200, one after the other
(`python benchmarks/gpu.py --only training` with each). On the one below it took 3.16 s, of which Python took a third:
minibatches were not drawn ahead yet. The results of the former are not stored, so that the goal counts as missed.

A kernel is compiled when it is first used, in about a second. Triton keeps it in `~/.triton`, or in
`TRITON_CACHE_DIR`. It needs a C compiler, `gcc`, `clang` or the one that `CC` names; without one a warning says so, and
cells run by the other engines.

## Not run on a GPU

The results below are older than the following code, which is tested on the CPU alone, where a function that runs again
takes the place of a recording:

- the drawing of minibatches ahead, with copies and mixtures for which nothing waits;
- recordings of padded passes and of passes that compute states again, and what a failed recording leaves in memory;
- the search for a C compiler, and the number of parts as a constant of the kernel of `scan`, which compiles for Hopper
  (`tests/engines/test_triton_compile.py`);
- the second run of each engine that `--device auto` of a server times. The server below took the first run of `torch`,
  in which its kernel is compiled, for its time.

The tests for a GPU (`pytest -m gpu`) last ran before this code was written: 166 of 173 passed, and what failed was
mended without a GPU. Several GPUs in one machine, and drivers that are too old or do not work, were never at hand. The
image for GPUs was never built ([deployment.md](deployment.md))."""
# The list above is of code that is younger than the results: a run of all parts and tests empties it.


class Goal(NamedTuple):
    """A goal: what is compared, what is wanted, and what was reached, in words."""

    what: str
    wanted: str
    reached: str
    is_met: bool | None
    """None if it was not measured."""


def goals(results: dict[str, Any]) -> list[Goal]:
    """Return the goals with what the results say of them."""
    # Times without a GPU mean nothing.
    parts = results["parts"] if results["environment"]["gpu"] is not None else {}
    rows = parts.get("steps", {}).get("tables", {}).get(MAIN, {}).get("rows", {})
    return [
        _goal(f"{MAIN}: nn.LSTM in float32 / triton", "at least 1", _ratio(rows, "nn.LSTM, float32"), "{:.2f}"),
        _goal(f"{MAIN}: loop / triton", "at least 20", _ratio(rows, "engine loop"), "{:.2f}"),
        _goal("an epoch of MNIST pixel by pixel", "under 3 s", _epoch(parts), "{:.2f} s"),
        _goal(f"{LONG}: loop / shooting", "at least 10", _long_ratio(parts, "loop"), "{:.1f}"),
        _goal(f"{LONG}: triton / shooting", "above 1", _long_ratio(parts, "triton"), "{:.1f}"),
    ]


def _goal(what: str, wanted: str, value: float | None, shown: str) -> Goal:
    if value is None:
        return Goal(what, wanted, NOT_MEASURED, None)
    bound = float(wanted.removesuffix(" s").split()[-1])
    return Goal(what, wanted, shown.format(value), value < bound if wanted.startswith("under") else value >= bound)


def _epoch(parts: dict[str, Any]) -> float | None:
    runs = parts.get("training", {}).get("runs", [])
    epochs = next((run["seconds_of_epochs"] for run in runs if MAIN.startswith(run["cell"])), [])
    # The first epoch contains the compilation, the last one the end of the run.
    return float(epochs[1]) if len(epochs) > 2 else None


def _ratio(rows: dict[str, Any], name: str) -> float | None:
    if name not in rows or "engine triton" not in rows:
        return None
    return float(rows[name]["ms"] / rows["engine triton"]["ms"])


def _long_ratio(parts: dict[str, Any], name: str) -> float | None:
    for row in parts.get("long", {}).get("rows", []):
        times = row["ms"]
        if f"{row['cell']} B=1 T={row['T']:,} N={row['N']}" == LONG and times.keys() >= {name, "shooting"}:
            return statistics.median(times[name]) / statistics.median(times["shooting"])
    return None


def write_page(results: dict[str, Any], page: Path = PAGE) -> None:
    """Write the page."""
    parts = results["parts"]
    minutes = sum(part["seconds"] for part in parts.values()) / 60
    lines = [
        "# GPUs",
        "",
        INTRODUCTION,
        "",
        "## Measured",
        "",
        "Written by `python benchmarks/gpu.py`, or from `benchmarks/results/gpu.json` by its option `--page`; do not "
        f"edit. All parts took {minutes:.1f} minutes.",
        "",
        conditions(results["environment"]),
        "",
        *goal_table(results),
        *_parts(parts, results["environment"]["gpu"]),
    ]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def goal_table(results: dict[str, Any]) -> list[str]:
    """Return the lines of a table of the goals."""
    met = {True: "yes", False: "no", None: ""}
    rows = (f"| {goal.what} | {goal.wanted} | {goal.reached} | {met[goal.is_met]} |" for goal in goals(results))
    return ["| goal | wanted | reached | met |", "| --- " * 4 + "|", *rows]


def conditions(environment: dict[str, Any]) -> str:
    """Return a paragraph on the command, the machine and the versions."""
    versions = ", ".join(f"{name} {number}" for name, number in environment["packages"].items() if number is not None)
    gpu = environment["gpu"]
    common = f"{environment['date']}, `{environment['command']}`, Python {environment['python']}, {versions}"
    if gpu is None:
        return (
            f"**Nothing on this page was measured on a GPU.** {common}, {environment['machine']} without a GPU: the "
            "kernels ran in Triton's interpreter and ONNX Runtime on the CPU, at small sizes. That the kernels compile "
            "for Hopper, what they take of registers and shared memory, is tested without a GPU "
            "(`tests/engines/test_triton_compile.py`)."
        )
    return (
        f"{common}; {gpu['name']} with {gpu['memory_gib']} GiB, driver {gpu['driver']}, CUDA {gpu['cuda']}, cuDNN "
        f"{gpu['cudnn']}; {environment['cores']} CPU cores."
    )


def _parts(parts: dict[str, Any], gpu: dict[str, Any] | None) -> Iterator[str]:
    titles = {
        "checks": "Kernels against the loop in float64",
        "steps": "Forward and backward",
        "long": "Long sequences",
        "training": "Training",
        "onnx": "ONNX Runtime",
        "serving": "Serving",
    }
    tables: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
        "checks": _checks,
        "steps": lambda part: _steps(part, gpu),
        "long": _long,
        "training": _training,
        "onnx": _onnx,
        "serving": _serving,
    }
    for name, title in titles.items():
        part = parts.get(name, {"not_measured": "It was left out."})
        yield from ("", f"### {title}", "")
        if "error" in part:
            yield f"Failed: {part['error']}"
        elif "not_measured" in part:
            yield f"Not measured: {part['not_measured']}"
        elif name != "checks" and gpu is None:
            yield "Not measured: without a GPU this part only ran, at sizes whose times mean nothing."
        else:
            yield from tables[name](part)


def _checks(part: dict[str, Any]) -> Iterator[str]:
    yield "Largest difference of outputs, last state or any gradient, relative to the largest entry of the tensor."
    yield from ("", "| cell | engine | N, B, T | equal lengths | unequal lengths | dt |", "| --- " * 6 + "|")
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in part["rows"]:
        text = row.get("message") or f"{row['error']:.1e}{'' if row['passed'] else ', failed'}"
        rows.setdefault((row["cell"], row["engine"], f"{row['N']}, {row['B']}, {row['T']}"), {})[row["kind"]] = text
    for key, errors in rows.items():
        yield f"| {' | '.join([*key, *(errors.get(kind, '') for kind in ('equal', 'lengths', 'dt'))])} |"


def _steps(part: dict[str, Any], gpu: dict[str, Any] | None) -> Iterator[str]:
    yield f"Milliseconds, the median of {part['rounds']} rounds in turn and the range."
    for name, table in part["tables"].items():
        yield from ("", f"**{name}**", "")
        if "not_measured" in table:
            yield f"Not measured: {table['not_measured']}"
            continue
        yield from ("| row | ms | range |", "| --- | --- | --- |")
        for row, figures in table["rows"].items():
            yield f"| {row} | {figures['ms']:.2f} | {figures['ms_low']:.2f} to {figures['ms_high']:.2f} |"
        for row, reason in table["missing"].items():
            yield f"| {row} | not measured | {reason.splitlines()[0]} |"
        if name == MAIN and gpu is not None and "engine triton" in table["rows"]:
            text = _distance(table["rows"]["engine triton"]["ms"], gpu["name"])
            yield from ("", *textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False))


def _distance(milliseconds: float, gpu: str) -> str:
    """Return how far a training step of the main table is from the limits of a GPU."""
    batch, steps, hidden = (int(word.split("=")[1]) for word in MAIN.split()[1:])
    text = (
        f"`triton` takes {1e3 * milliseconds / (2 * steps):.2f} µs for each of its {2 * steps:,} products, forward and "
        "back, of which each needs the one before; this includes all else that a training step does. The least time "
        "that such a product can take was not measured."
    )
    if gpu not in TERABYTES_PER_SECOND:
        return text
    # Of drives, states and the gradients by both; four bytes a number.
    size, rate = 4 * 4 * batch * steps * hidden, TERABYTES_PER_SECOND[gpu]
    bound = 1e3 * size / (rate * 1e12)
    return (
        f"{text} Drives, states and the gradients by both are {size / 1e6:.0f} MB, and to read or write each once "
        f"takes {bound:.2f} ms at the {rate} TB/s of the GPU's memory: {bound / milliseconds:.0%} of the time."
    )


def _long(part: dict[str, Any]) -> Iterator[str]:
    yield "One sequence, forward and backward, in milliseconds: the median of the rounds in turn and the range."
    yield from ("", "| cell | N | T | engine | ms | range |", "| --- " * 6 + "|")
    engines: dict[str, dict[str, None]] = {}
    for row in part["rows"]:
        engines.setdefault(row["cell"], {}).update(dict.fromkeys([*row["ms"], *row["missing"]]))
    for row in part["rows"]:
        size = f"| {row['cell']} | {row['N']} | {row['T']:,}"
        for engine, times in row["ms"].items():
            yield f"{size} | {engine} | {statistics.median(times):.1f} | {min(times):.1f} to {max(times):.1f} |"
        for engine in engines[row["cell"]]:
            if engine not in row["ms"]:
                reason = row["missing"].get(engine, "left out")
                yield f"{size} | {engine} | not measured | {reason.splitlines()[0]} |"
    if part["sweeps"]:
        yield ""
        yield from (f"- {message}" for message in part["sweeps"])


def _training(part: dict[str, Any]) -> Iterator[str]:
    yield "Seconds of each epoch, the first with the compilation of kernels, the last with the end of the run. An epoch"
    yield "includes augmentation, the scores of 5,000 validation images and a certificate."
    yield from ("", "| cell | data | engine | steps of an epoch | seconds | test accuracy |", "| --- " * 6 + "|")
    for run in part["runs"]:
        seconds = ", ".join(f"{value:.2f}" for value in run["seconds_of_epochs"])
        steps = run["steps"] // run["epochs"]
        yield f"| {run['cell']} | {run['data']} | {run['engine']} | {steps} | {seconds} | {run['accuracy']:.4f} |"


def _onnx(part: dict[str, Any]) -> Iterator[str]:
    yield f"`sequence.onnx` by `{part['provider']}` with bound buffers; the error is relative to torch on the CPU. The"
    yield "model is not trained, and amplifies rounding over 784 steps: on a CPU, float32 and float64 differ as much."
    yield from ("", "| B, T | ms | error |", "| --- | --- | --- |")
    for row in part["rows"]:
        yield f"| {row['B']}, {row['T']} | {row['ms']:.2f} | {row['error']:.1e} |"


def _serving(part: dict[str, Any]) -> Iterator[str]:
    auto = part["auto"]
    yield f"A server with {part['model']}. What `--device auto` chooses, in the words of `stablernn doctor --model`:"
    yield f"{auto['device_note']}."
    yield from ("", "| device | sequences | ms of a request |", "| --- | --- | --- |")
    for device, times in part["request_ms"].items():
        yield from (f"| {device} | {rows} | {time:.2f} |" for rows, time in times.items())
    if part["difference"] is not None:
        yield ""
        yield f"Largest difference of a probability between the devices: {part['difference']:.1e}."
