"""`stablernn quickstart`: train, evaluate, export and serve in one go, with the functions of those commands."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from stablernn.training.loop.launch import refuse_several_processes
from stablernn_cli import config_options
from stablernn_cli.commands import evaluate, export, train
from stablernn_cli.errors import CommandError
from stablernn_cli.options import JsonOption, option
from stablernn_cli.output import Output, figure

DATA = "digits"
CELL = "lipschitz"
NUM_DIGITS = 5
"""Digits of the test split that the server classifies."""

_TIMEOUT_SECONDS = 60


def quickstart(
    context: typer.Context,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name in the registry.")] = "digits",
    epochs: Annotated[
        int | None,
        option("Passes over the training data; default: recommended for the cell."),
    ] = None,
    run_dir: config_options.RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go from data to a served model

    Trains a Lipschitz RNN on the bundled digits, scores it, exports it to ONNX into the registry, starts a real server,
    classifies digits of the test split over REST and stops the server. Prints the command for each step.

    Example: stablernn quickstart
    """
    refuse_several_processes("The quickstart", "Run it without torchrun, which is for `stablernn train`.")
    output = Output.of(context, as_json)
    document = _run(output, name, epochs, run_dir)
    if as_json:
        output.document(document)


def _run(output: Output, name: str, epochs: int | None, run_dir: Path | None) -> dict[str, Any]:
    start = time.monotonic()
    # Before the training, which takes longest.
    export.check_names(name)
    options: dict[str, Any] = {"data": DATA, "cell": CELL}
    if epochs is not None:
        options["epochs"] = epochs
    flags = "".join(f" --{key} {value}" for key, value in options.items())
    _announce(output, "1. Train", f"stablernn train{flags}" + (f" --run-dir {run_dir}" if run_dir else ""))
    summary = train.fit(output, options, run_dir=run_dir)
    run = Path(summary["run"])

    _announce(output, "2. Evaluate on the test split", f"stablernn eval {run}")
    scores = evaluate.score(output, str(run))
    if not output.as_json:
        evaluate.show(output, scores)

    _announce(output, "3. Export to ONNX and publish", f"stablernn export {run} --name {name}")
    published = export.publish(output, run, name)
    if not output.as_json:
        export.show(output, published)
    ref = published["ref"]

    _announce(output, "4. Serve", f"stablernn serve --model {ref}")
    log = run / "server.log"
    # A process of its own, as `stablernn serve` would be; its log stays in the run.
    with _server(ref, log) as url:
        body = {"model": ref, "inputs": [], "options": {"top_k": 1}}
        samples, truth, ids = _test_digits()
        body["inputs"] = [{"name": name, "series": values} for name, values in zip(ids, samples, strict=True)]
        _announce(output, "5. Classify over REST", f"curl {url}/v1/timeseries/classify -d '{_shorten(body)}'")
        answers = _answers(_post(f"{url}/v1/timeseries/classify", body), ids, truth)
    if not output.as_json:
        output.table(
            ("test digit", "answer", "probability", "truth"),
            [[answer[key] for key in ("id", "label", "probability", "truth")] for answer in answers],
        )
        output.text()
        output.facts(
            {
                "test accuracy": figure(scores["metrics"]["accuracy"]),
                "run": f"{run} (plots in {run / 'plots'})",
                "model": f"{ref} in {published['registry']}",
                "server log": str(log),
                "took": f"{time.monotonic() - start:.0f} s",
                "next": f"stablernn serve --model {ref}",
            },
            title="Done: from data to an answer over REST",
        )
    return {
        "run": str(run),
        "ref": ref,
        "registry": published["registry"],
        "metrics": scores["metrics"],
        "parity": published["parity"],
        "url": url,
        "answers": answers,
        "seconds": round(time.monotonic() - start, 1),
    }


def _announce(output: Output, title: str, command: str) -> None:
    output.note(f"\n{title}\n  $ {command}")


def _test_digits() -> tuple[list[list[float]], list[str], list[str]]:
    """Return the first digits of the test split: raw pixels, labels, positions in the dataset."""
    from stablernn.data import ClassificationData, load_data

    data = load_data(DATA)
    assert isinstance(data, ClassificationData)
    split = data.split("test")
    pixels = [split.x[number, : split.lengths[number], 0].tolist() for number in range(NUM_DIGITS)]
    return pixels, [data.labels[number] for number in split.y[:NUM_DIGITS]], list(split.ids[:NUM_DIGITS])


@contextlib.contextmanager
def _server(ref: str, log: Path) -> Iterator[str]:
    """Run a server process on a free port, and give its address.

    Raises:
        CommandError: If it does not start; the message is the server's own.
    """
    import subprocess

    # Port 0 selects a free one; the JSON document has the address.
    command = [sys.executable, "-m", "stablernn_cli", "serve", "--model", ref, "--port", "0", "--json"]
    with (
        log.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield _wait_until_ready(process.stdout, log)
        finally:
            process.terminate()
            try:
                process.wait(timeout=_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                # SIGTERM drains requests first, which must not take this long.
                process.kill()


def _wait_until_ready(stdout: IO[str], log: Path) -> str:
    """Return the address in the JSON document that a server prints when it is ready.

    Raises:
        CommandError: If the server exits before.
    """
    lines: list[str] = []
    for line in stdout:
        lines.append(line)
        # The document is indented: only its last line is a brace without spaces before it.
        if line.rstrip() == "}":
            return str(json.loads("".join(lines))["url"])
    messages = log.read_text(encoding="utf-8").strip().splitlines()
    raise CommandError(messages[-1].removeprefix("Error: ") if messages else f"The server did not start. See {log}.")


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    import httpx

    try:
        # Without the proxy of the environment: the server is on this machine.
        response = httpx.post(url, json=body, timeout=_TIMEOUT_SECONDS, trust_env=False)
    except httpx.TransportError as error:
        raise CommandError(f"The server does not answer at {url}: {error}.") from error
    if response.is_error:
        raise CommandError(f"The server answered {response.status_code}: {response.text}")
    return dict(response.json())


def _answers(response: dict[str, Any], ids: list[str], truth: list[str]) -> list[dict[str, Any]]:
    """Return the label and its probability for each digit, with the true label."""
    contents = [result["content"][0] for result in response["outputs"]]
    return [
        {"id": digit, "label": label, "probability": content["probabilities"][label], "truth": true_label}
        for digit, true_label, content in zip(ids, truth, contents, strict=True)
        for label in [content["label"]]
    ]


def _shorten(body: dict[str, Any]) -> str:
    """Return the request as text, with the beginning of one series only."""
    series = body["inputs"][0]["series"]
    return f'{{"model": "{body["model"]}", "inputs": [{{"series": [{", ".join(f"{v:g}" for v in series[:6])}, ...]}}]}}'
