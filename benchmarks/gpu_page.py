"""``docs/gpu.md``, from what ``gpu.py`` measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
MAIN = "antisymmetric B=128 T=784 N=128"
"""The table that the goals are about."""
LONG = "rnn B=1 T=65,536 N=64"
"""The long sequence that the goals are about."""
NOT_MEASURED = "not measured"
INTRODUCTION = """\
On a GPU the engine `triton` trains cells of the families plain, residual, two-stage and shared gate: a whole sequence
is one kernel, forward and back, in which the recurrent matrices stay on chip, in registers or shared memory. `auto`
takes it. Install it with `pip install 'stablernn[gpu]'` (Linux, an NVIDIA GPU of compute capability 8 or higher).

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
loop.

Replays of `cuda-graph` may come from any thread and stream. Those on one GPU run one after the other, since they write
the buffers of their recordings and may share workspaces of libraries: each waits for an event at the end of the last
one. Before a cell is recorded, two steps are searched for operations that wait for the GPU, such as `item()` or
indexing by a mask; such a cell runs in the loop, and a warning names the operation. If a recording fails all the same,
the stream that was current before is current again, torch's allocator is told that the recording and its use of the
pool have ended, and the random generator gets a copy of its state that belongs to no recording, without which torch
2.11 refuses to draw random numbers from then on
([pytorch#171263](https://github.com/pytorch/pytorch/issues/171263)). Inside a recording of somebody else, forward and
backward pass are those of the loop, whose kernels become part of it. `pytest -m gpu tests/engines` shows all of it: it
passed on the H200 below.

`lru`, `mingru` and `minlstm` (engine `scan`) run by a kernel of Triton as well, in which each unit goes through all
steps by itself; the backward pass also sums the gradient of a constant decay. Without the package triton they take
about 3 sqrt(time) operations on chunks of time.

`train` records the forward and backward pass of a minibatch as one CUDA graph, where the engine is `triton`, `scan` or,
without padding, `torch-rnn`. The first two passes of a shape run as they are, the third is recorded, up to 16 shapes,
which share their memory. It then draws the next minibatch while the GPU is at work. Losses, gradients and random
numbers are those of passes that are not recorded. A pass that waits for the GPU, such as a check of tokens, or draws
random numbers on the CPU, is not recorded; the reason is logged, and all passes run as they are from then
on. Passes of several processes are not recorded either. A recorded pass runs the padding of its sequences, too, since
their lengths are not read; others are cut into parts of time over which fewer sequences run.
`pytest -m gpu tests/training/batches` compares trainings with and without recordings.

On one H200 an epoch of pixel MNIST with `antisymmetric` took 3.9 s without recorded passes and 2.7 s with them, one
after the other (`python benchmarks/gpu.py --only training`, once with the code of each). 200 steps of the same training
with `lru` took 139 ms each before and 25 ms with recorded passes, timed by hand on that machine, and 7.0 ms with the
kernel of Triton as well, on the machine below. A third of a step was Python's, so that an epoch of `antisymmetric` took
{epoch} there. These figures are from before minibatches were drawn ahead.

On the machine below, `--device auto` took the first run of `torch`, with the compilation of its kernel, for its time,
since no time was left for another one. Since then a second run begins as long as any time is left.

A kernel is compiled when it is first used, in about a second. Triton keeps it in `~/.triton`, or in
`TRITON_CACHE_DIR`. It needs a C compiler, `gcc`, `clang` or the one that `CC` names; without one a warning says so, and
cells run by the other engines."""


class Goal(NamedTuple):
    """A goal: what is compared, what is wanted, and what was reached, in words."""

    what: str
    wanted: str
    reached: str


def goals(results: dict[str, Any]) -> list[Goal]:
    """Return the goals with what the results say of them."""
    # Times without a GPU mean nothing.
    parts = results["parts"] if results["environment"]["gpu"] is not None else {}
    rows = parts.get("steps", {}).get("tables", {}).get(MAIN, {}).get("rows", {})
    return [
        Goal(f"{MAIN}: nn.LSTM in float32 / triton", "at least 1", _ratio(rows, "nn.LSTM, float32")),
        Goal(f"{MAIN}: loop / triton", "at least 20", _ratio(rows, "engine loop")),
        Goal("an epoch of MNIST pixel by pixel", "under 3 s", _epoch(parts)),
        Goal(f"{LONG}: loop / shooting", "at least 10", _long_ratio(parts, "loop")),
        Goal(f"{LONG}: triton / shooting", "above 1", _long_ratio(parts, "triton")),
    ]


def _epoch(parts: dict[str, Any]) -> str:
    runs = parts.get("training", {}).get("runs", [])
    epochs = next((run["seconds_of_epochs"] for run in runs if MAIN.startswith(run["cell"])), [])
    # The first epoch contains the compilation, the last one the end of the run.
    return f"{epochs[1]:.2f} s" if len(epochs) > 2 else NOT_MEASURED


def _ratio(rows: dict[str, Any], name: str) -> str:
    if name not in rows or "engine triton" not in rows:
        return NOT_MEASURED
    return f"{rows[name]['ms'] / rows['engine triton']['ms']:.2f}"


def _long_ratio(parts: dict[str, Any], name: str) -> str:
    for row in parts.get("long", {}).get("rows", []):
        times = row["ms"]
        if f"{row['cell']} B=1 T={row['T']:,} N={row['N']}" == LONG and times.keys() >= {name, "shooting"}:
            return f"{statistics.median(times[name]) / statistics.median(times['shooting']):.1f}"
    return NOT_MEASURED


def write_page(results: dict[str, Any]) -> None:
    """Write the page."""
    lines = [
        "# GPUs",
        "",
        INTRODUCTION.format(epoch=_epoch(results["parts"])),
        "",
        "## Measured",
        "",
        "Written by `python benchmarks/gpu.py --page` from `benchmarks/results/gpu.json`; do not edit. "
        "`python benchmarks/gpu.py` checks and measures, in about three minutes on one H200.",
        "",
        _conditions(results["environment"]),
        "",
        "| goal | wanted | reached |",
        "| --- | --- | --- |",
        *(f"| {' | '.join(goal)} |" for goal in goals(results)),
        *_parts(results["parts"], has_gpu=results["environment"]["gpu"] is not None),
    ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _conditions(environment: dict[str, Any]) -> str:
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


def _parts(parts: dict[str, Any], *, has_gpu: bool) -> Iterator[str]:
    titles = {
        "checks": "Kernels against the loop in float64",
        "steps": "Forward and backward",
        "long": "Long sequences",
        "training": "Training",
        "onnx": "ONNX Runtime",
        "serving": "Serving",
    }
    tables = {
        "checks": _checks,
        "steps": _steps,
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
        elif name != "checks" and not has_gpu:
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


def _steps(part: dict[str, Any]) -> Iterator[str]:
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


def _long(part: dict[str, Any]) -> Iterator[str]:
    yield "One sequence, forward and backward, in milliseconds: the median of the rounds in turn and the range."
    yield from ("", "| cell | N | T | engine | ms | range |", "| --- " * 6 + "|")
    for row in part["rows"]:
        size = f"| {row['cell']} | {row['N']} | {row['T']:,}"
        for engine, times in row["ms"].items():
            yield f"{size} | {engine} | {statistics.median(times):.1f} | {min(times):.1f} to {max(times):.1f} |"
        for engine, reason in row["missing"].items():
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
    yield "untrained model amplifies rounding over 784 steps: float32 and float64 on a CPU differ by 1.2e-2 too, with"
    yield "32 sequences."
    yield from ("", "| B, T | ms | error |", "| --- | --- | --- |")
    for row in part["rows"]:
        yield f"| {row['B']}, {row['T']} | {row['ms']:.2f} | {row['error']:.1e} |"


def _serving(part: dict[str, Any]) -> Iterator[str]:
    auto = part["auto"]
    yield f"A server with {part['model']}. What `--device auto` takes, as `stablernn doctor --model` says:"
    yield f"{auto['device_note']}."
    yield from ("", "| device | sequences | ms of a request |", "| --- | --- | --- |")
    for device, times in part["request_ms"].items():
        yield from (f"| {device} | {rows} | {time:.2f} |" for rows, time in times.items())
    if part["difference"] is not None:
        yield ""
        yield f"Largest difference of a probability between the devices: {part['difference']:.1e}."
