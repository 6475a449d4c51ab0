"""The page at ``/``: files of the folder ``page``, as they are, read once.

They are open to everybody, as they say nothing that the package does not; what they ask the server for
needs a key where there is one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

_FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_NAMES = sorted(path.name for path in _FOLDER.iterdir() if path.suffix in _TYPES)
# Exactly these: whatever else begins like them may be a route behind --root-path.
PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in _NAMES)})
# Nothing from elsewhere, nothing inline, in nobody's frame; and no text becomes HTML, whatever a script does.
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


@dataclass(frozen=True)
class _File:
    body: bytes
    headers: dict[str, str]


def _read(path: Path) -> _File:
    body = path.read_bytes()
    headers = {
        "Content-Type": _TYPES[path.suffix],
        # A browser keeps it and asks each time whether it is still that: another version shows at once.
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
    return _File(body, headers)


def add_page(app: FastAPI) -> None:
    """Adds ``/`` and ``/page/NAME``, for GET and HEAD."""
    files = {name: _read(_FOLDER / name) for name in _NAMES}

    def answer(request: Request, name: str) -> Response:
        file = files.get(name)
        if file is None:
            raise HTTPException(404, "the page has no such file")
        if _is_known(request.headers.get("if-none-match", ""), file.headers["ETag"]):
            kept = {key: value for key, value in file.headers.items() if key != "Content-Type"}
            return Response(status_code=304, headers=kept)
        return Response(file.body, headers=file.headers)

    async def page(request: Request) -> Response:
        return answer(request, "index.html")

    async def page_file(request: Request, name: str) -> Response:
        return answer(request, name)

    methods = ["GET", "HEAD"]
    app.add_api_route("/", page, methods=methods, include_in_schema=False)
    app.add_api_route("/page/{name}", page_file, methods=methods, include_in_schema=False)


def _is_known(if_none_match: str, etag: str) -> bool:
    """Whether the client has it. A proxy that compresses marks the tag as weak."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or "*" in tags
