"""`stablernn quickstart`: the main job in one go, by the functions of the commands that it stands for."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from stablernn_cli.commands import evaluate, export, train
from stablernn_cli.errors import CommandError
from stablernn_cli.output import JsonOption, Output, figure

DATA = "digits"
CELL = "lipschitz"
ASKED = 5
"""Digits of the test split that the server is asked about."""

_START_SECONDS = 60


def quickstart(
    context: typer.Context,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name in the registry.")] = "digits",
    epochs: Annotated[
        int | None,
        typer.Option(help="Passes over the training data; default: recommended for the cell.", show_default=False),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the run goes; default: a new folder in runs/.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Go from data to a served model

    Trains a Lipschitz RNN on the bundled digits, scores it, exports it to ONNX into the registry, starts a real server,
    classifies digits of the test split over REST and stops the server. Prints the command for each step.

    Example: stablernn quickstart
    """
    output = Output.of(context, as_json)
    document = _run(output, name, epochs, run_dir)
    if as_json:
        output.document(document)


def _run(output: Output, name: str, epochs: int | None, run_dir: Path | None) -> dict[str, Any]:
    started = time.monotonic()
    export.check_names(name)
    # One thread: at this size the second one gains nothing, and waits for the first at full load.
    given: dict[str, Any] = {"data": DATA, "cell": CELL}
    if epochs is not None:
        given["epochs"] = epochs
    asked = "".join(f" --{key} {value}" for key, value in given.items())
    _step(output, "1. Train", f"stablernn train{asked}" + (f" --run-dir {run_dir}" if run_dir else ""))
    summary = train.fit(output, given, run_dir=run_dir)
    run = Path(summary["run"])

    _step(output, "2. Evaluate on the test split", f"stablernn eval {run}")
    scores = evaluate.score(output, str(run))
    if not output.as_json:
        evaluate.show(output, scores)

    _step(output, "3. Export to ONNX and publish", f"stablernn export {run} --name {name}")
    published = export.publish(output, run, name)
    if not output.as_json:
        export.show(output, published)
    ref = published["ref"]

    _step(output, "4. Serve", f"stablernn serve --model {ref}")
    log = run / "server.log"
    with _server(ref, log) as url:
        body = {"model": ref, "inputs": [], "options": {"top_k": 1}}
        samples, truth, ids = _test_digits()
        body["inputs"] = [{"name": word, "series": values} for word, values in zip(ids, samples, strict=True)]
        _step(output, "5. Classify over REST", f"curl {url}/v1/timeseries/classify -d '{_shortened(body)}'")
        answers = _answers(_post(f"{url}/v1/timeseries/classify", body), ids, truth)
    if not output.as_json:
        output.table(
            ("test digit", "answer", "probability", "truth"),
            [[a["id"], a["label"], a["probability"], a["truth"]] for a in answers],
        )
        output.text()
        output.facts(
            {
                "test accuracy": figure(scores["metrics"]["accuracy"]),
                "run": f"{run} (plots in {run / 'plots'})",
                "model": f"{ref} in {published['registry']}",
                "server log": str(log),
                "took": f"{time.monotonic() - started:.0f} s",
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
        "seconds": round(time.monotonic() - started, 1),
    }


def _step(output: Output, title: str, command: str) -> None:
    output.note(f"\n{title}\n  $ {command}")


def _test_digits() -> tuple[list[list[float]], list[str], list[str]]:
    """The first digits of the test split: raw pixels, labels, positions in the dataset."""
    from stablernn.data import ClassificationData, load_data

    data = load_data(DATA)
    assert isinstance(data, ClassificationData)
    split = data.split("test")
    pixels = [split.x[number, : split.lengths[number], 0].tolist() for number in range(ASKED)]
    return pixels, [data.labels[number] for number in split.y[:ASKED]], list(split.ids[:ASKED])


@contextlib.contextmanager
def _server(ref: str, log: Path) -> Iterator[str]:
    """A server process on a free port; gives its address and stops it at the end.

    Raises:
        CommandError: If it does not start; the sentence is the server's own.
    """
    import subprocess

    command = [sys.executable, "-m", "stablernn_cli", "serve", "--model", ref, "--port", "0", "--json"]
    with (
        log.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield _address(process.stdout, log)
        finally:
            process.terminate()
            try:
                process.wait(timeout=_START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(stdout: IO[str], log: Path) -> str:
    """What the server says of itself when it is ready; its document ends with the only line that is just ``}``."""
    lines: list[str] = []
    for line in stdout:
        lines.append(line)
        if line.rstrip() == "}":
            return str(json.loads("".join(lines))["url"])
    said = log.read_text(encoding="utf-8").strip().splitlines()
    raise CommandError(said[-1].removeprefix("Error: ") if said else f"The server did not start. See {log}.")


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    # A proxy that the environment names is not for a server on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_START_SECONDS) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        raise CommandError(f"The server answered {error.code}: {error.read().decode(errors='replace')}") from error
    except urllib.error.URLError as error:
        raise CommandError(f"The server does not answer at {url}: {error.reason}.") from error


def _answers(response: dict[str, Any], ids: list[str], truth: list[str]) -> list[dict[str, Any]]:
    found = []
    for word, right, result in zip(ids, truth, response["outputs"], strict=True):
        content = result["content"][0]
        label = content["label"]
        found.append({"id": word, "label": label, "probability": content["probabilities"][label], "truth": right})
    return found


def _shortened(body: dict[str, Any]) -> str:
    """The request for people: one series, cut."""
    series = body["inputs"][0]["series"]
    return f'{{"model": "{body["model"]}", "inputs": [{{"series": [{", ".join(f"{v:g}" for v in series[:6])}, ...]}}]}}'
