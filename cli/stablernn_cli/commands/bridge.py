"""`stablernn bridge`: streams between a version and a message broker."""

from __future__ import annotations

import importlib.util
import logging
import signal
from pathlib import Path
from typing import Annotated

import typer

from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.options import JsonOption, option
from stablernn_cli.output import Output

app = typer.Typer(help="Answer messages of a broker", no_args_is_help=True, add_completion=False)


@app.callback()
def _group() -> None:
    """Answer messages of a broker"""


@app.command()
def mqtt(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="NAME, NAME:VERSION or NAME@ALIAS.")],
    topic: Annotated[str, option("Topics to read; what + and # stand for is the key.")],
    answers: Annotated[str, option("Topic of answers, with {key}.")],
    broker: Annotated[str, typer.Option(metavar="HOST:PORT", help="The broker.")] = "localhost:1883",
    checkpoint: Annotated[Path, typer.Option(help="File that keeps all streams.")] = Path("streams.ckpt"),
    every: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Seconds between checkpoints.")] = 5.0,
    lateness: Annotated[
        int | None,
        option(
            "Numbers by which a message may be ahead before those missing are skipped; default: that of the "
            "checkpoint, 16 for a new one.",
            min=0,
        ),
    ] = None,
    client_id: Annotated[str, typer.Option(help="Name of the persistent session at the broker.")] = "stablernn-bridge",
    username: Annotated[str | None, option("Name to log in with.")] = None,
    password: Annotated[str | None, option("Password to log in with.", envvar="STABLERNN_MQTT_PASSWORD")] = None,
    tls: Annotated[bool, option("Connect by TLS, with the system's certificates.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Answer the messages of MQTT topics

    Each key is a stream. A message is JSON: a number, an array of the features, or {"x": ..., "n": ...} with the number
    of the event within its key, from 0 on. Streams survive a restart with the same --checkpoint and --client-id. Ends
    with SIGTERM or Ctrl-C; --json prints the counts then. Needs the extra 'mqtt'. docs/guides/streams_by_key.md says
    what holds.

    Example: stablernn bridge mqtt load@production --topic 'sensors/+/value' --answers 'answers/{key}'
    """
    output = Output.of(context, as_json)
    host, _, port = broker.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UsageError(f"--broker must be HOST:PORT with a port from 1 to 65535, got '{broker}'.")
    if password is not None and username is None:
        raise UsageError("--password needs --username.")
    if "{key}" not in answers or {"+", "#"} & set(answers):
        raise UsageError(f"--answers must hold {{key}} and no wildcard, got '{answers}'.")
    if importlib.util.find_spec("paho") is None:
        raise CommandError("The bridge needs paho-mqtt: pip install -e '.[mqtt]' in the checkout.")
    from stablernn_cli.bridge import BrokerOptions, MqttBridge
    from stablernn_registry import Registry
    from stablernn_runtime.scoring import Scorer

    if not output.quiet:
        logging.getLogger("stablernn_cli.bridge").setLevel(logging.INFO)
    options = BrokerOptions(host.strip("[]"), int(port), client_id, topic, answers, username, password, tls)
    scorer = Scorer.find(model, registry=Registry().root)
    bridge = MqttBridge(scorer, options, checkpoint, lateness=lateness, every_seconds=every)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: bridge.stop())
    output.note(f"Answering '{topic}' of {broker} by {scorer.model}, {len(bridge.shard):,} streams in {checkpoint}.")
    counts = bridge.run()
    if as_json:
        output.document({"model": scorer.model, **counts})
    else:
        output.note(f"Took {counts['events']:,} events of {counts['keys']:,} keys.")
    if not bridge.is_stored:
        output.note(
            f"The broker has not confirmed all answers: {checkpoint}.events keeps their events, and the next run "
            "answers them."
        )
