"""`stablernn stream`: streams of a checkpoint file as state tokens."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stablernn_cli.errors import UsageError
from stablernn_cli.options import JsonOption, option
from stablernn_cli.output import Output

if TYPE_CHECKING:
    from stablernn_runtime import StateTokens
    from stablernn_runtime.scoring import StreamShard

app = typer.Typer(help="Move streams between checkpoints and servers", no_args_is_help=True, add_completion=False)

CheckpointArgument = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="File that a shard or the bridge wrote.", show_default=False)
]
KeyOption = Annotated[str, option("Key of the stream.", "--key", metavar="ID")]
KeyTypeOption = Annotated[
    Literal["text", "int", "bytes"],
    typer.Option(help="Type of the key in the shard; bytes are those of the text in UTF-8."),
]


@app.command("export")
def export_(
    context: typer.Context,
    checkpoint: CheckpointArgument,
    key: KeyOption,
    key_type: KeyTypeOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Print the state token of a stream

    Any server or client with the same STABLERNN_STATE_KEY and version continues the stream from the token. The version
    is read from the registry. The checkpoint stays as it is.

    Example: stablernn stream export streams.ckpt --key hall
    """
    output = Output.of(context, as_json)
    tokens = _state_tokens()
    shard = _open_shard(checkpoint)
    name = _typed_key(key, key_type)
    token = shard.token(name, tokens)
    if as_json:
        output.document(
            {"model": shard.scorer.model, "key": key, "next_number": shard.next_number(name), "state_token": token}
        )
    else:
        output.text(token)


@app.command("import")
def import_(
    context: typer.Context,
    checkpoint: CheckpointArgument,
    key: KeyOption,
    token: Annotated[str | None, option("The state token; - reads it from stdin.", metavar="TOKEN")] = None,
    token_file: Annotated[Path | None, option("File with the state token.")] = None,
    number: Annotated[
        int | None,
        option("Number of the last event that the stream has taken; default: its samples less one.", metavar="N"),
    ] = None,
    key_type: KeyTypeOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Set a stream to the content of a state token

    The stream may be new. The token must be signed with STABLERNN_STATE_KEY and be of the checkpoint's version. The
    file is replaced in one step, and refused while a bridge is using it; no other program may be writing it.

    Example: stablernn stream import streams.ckpt --key hall --token -
    """
    from stablernn_cli.bridge import Journal, journal_path, write_checkpoint

    output = Output.of(context, as_json)
    if (token is None) == (token_file is None):
        raise UsageError("Give the state token by --token or by --token-file, one of both.")
    tokens = _state_tokens()
    if token_file is not None:
        token = token_file.read_text(encoding="utf-8")
    elif token == "-":
        token = sys.stdin.read()
    name = _typed_key(key, key_type)
    # A bridge that is running would replace the file with its own streams.
    lock = Journal(journal_path(checkpoint)) if journal_path(checkpoint).exists() else nullcontext()
    with lock:
        shard = _open_shard(checkpoint)
        shard.put(name, (token or "").strip(), tokens, number=number)
        write_checkpoint(checkpoint, shard.dump_parts())
    if as_json:
        output.document({"model": shard.scorer.model, "key": key, "next_number": shard.next_number(name)})
    else:
        output.note(f"Set the stream '{key}' of {checkpoint}; its next event is number {shard.next_number(name)}.")


def _open_shard(checkpoint: Path) -> StreamShard:
    """Open the shard of a checkpoint with its version in the registry.

    Raises:
        UsageError: If events were written beside the checkpoint that it does not hold yet.
    """
    from stablernn_cli.bridge import journal_path
    from stablernn_registry import Registry
    from stablernn_runtime.scoring import Scorer, StreamShard
    from stablernn_runtime.scoring.shard_checkpoint import map_checkpoint, read_fields

    journal = journal_path(checkpoint)
    if journal.exists() and journal.stat().st_size:
        raise UsageError(
            f"{journal} holds events that are not in the checkpoint yet: end the bridge, or start and end it once."
        )
    with map_checkpoint(checkpoint) as content:
        return StreamShard.load(Scorer.find(read_fields(content)["model"], registry=Registry().root), content)


def _state_tokens() -> StateTokens:
    """Return the signer of state tokens with the key and lifetime of the settings of ``serve``.

    Raises:
        UsageError: If there is no key.
    """
    from stablernn_server import Settings
    from stablernn_server.key_files import create_state_tokens

    settings = Settings()
    if settings.state_key is None and settings.state_key_file is None:
        raise UsageError(
            "Set STABLERNN_STATE_KEY or STABLERNN_STATE_KEY_FILE to the key of the servers: it signs state tokens."
        )
    return create_state_tokens(settings)


def _typed_key(key: str, key_type: str) -> str | bytes | int:
    if key_type == "bytes":
        return key.encode()
    if key_type == "text":
        return key
    try:
        return int(key)
    except ValueError as error:
        raise UsageError(f"--key must be a whole number with --key-type int, got '{key}'.") from error
