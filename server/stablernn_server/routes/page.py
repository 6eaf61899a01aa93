"""The page at ``/`` and the API docs at ``/docs``: the files of one folder of this package."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parents[1] / "page"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES = frozenset(path.name for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES)
HEADERS = {
    # Nothing from other hosts, nothing inline, and no text that becomes markup.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Cached, but revalidated each time: a page and a server of different versions do not work together.
    "Cache-Control": "no-cache",
}


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    """Serve the page."""
    return _file_response(request, "index.html")


@router.api_route("/docs", methods=["GET", "HEAD"])
async def docs(request: Request) -> Response:
    """Serve the API docs."""
    return _file_response(request, "docs.html")


@router.api_route("/page/{file}", methods=["GET", "HEAD"])
async def page_file(request: Request, file: str) -> Response:
    """Serve a script, a style sheet or a picture of the page.

    Raises:
        HTTPException: 404 if the page has no such file.
    """
    if file not in FILES:
        raise HTTPException(404)
    return _file_response(request, file)


def _file_response(request: Request, file: str) -> Response:
    content, tag = _load_file(file)
    headers = {**HEADERS, "ETag": tag}
    # RFC 9110, section 13.1.2: tags are compared weakly, and * matches any.
    client_tags = [text.strip().removeprefix("W/") for text in request.headers.get("if-none-match", "").split(",")]
    if tag in client_tags or "*" in client_tags:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=MEDIA_TYPES[Path(file).suffix])


@cache
def _load_file(file: str) -> tuple[bytes, str]:
    """Return the bytes of a file, and the value of ``ETag``."""
    content = (FOLDER / file).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'
