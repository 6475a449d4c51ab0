"""A small Hugging Face hub of one model, for clients that HF_ENDPOINT sends here."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves ``files`` as the model ``name``, whose branch main is COMMIT."""

    daemon_threads = True

    def __init__(self, name: str, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name, self.files = name, files
        self.asked: list[str] = []  # the paths of all requests
        self.fetched: list[str] = []  # the files whose bytes were sent

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def fake_hub(name: str, directory: Path, **more: bytes) -> Iterator[FakeHub]:
    """The files of a directory, and more, as a model on a hub that runs meanwhile."""
    files = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()} | more
    hub = FakeHub(name, files)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server
        path = unquote(urlsplit(self.path).path)
        hub.asked.append(path)
        api, resolve = f"/api/models/{hub.name}", f"/{hub.name}/resolve/"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in hub.files]
            return self._json({"id": hub.name, "modelId": hub.name, "sha": COMMIT, "siblings": siblings})
        if path.startswith(f"{api}/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in hub.files.items()
            ]
            return self._json(tree)
        if path.startswith(f"{api}/revision/"):
            return self._fail(404, "RevisionNotFound")
        if path.startswith(resolve):
            name = path.removeprefix(resolve).partition("/")[2]
            if name not in hub.files:
                return self._fail(404, "EntryNotFound")
            if self.command == "GET":
                hub.fetched.append(name)
            return self._send(200, hub.files[name], ETag=f'"{hashlib.sha1(hub.files[name]).hexdigest()}"')
        self._fail(404, "RepoNotFound")

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode())

    def _fail(self, status: int, code: str) -> None:
        self._send(status, b"{}", **{"X-Error-Code": code})

    def _send(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"X-Repo-Commit": COMMIT, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
