"""A headless Chromium for tests, by its DevTools protocol over two pipes.

That is all that a test needs (input as a person gives it, the accessibility tree, media features), and takes
no package: a driver would be one more program, whose version must be the browser's.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_KEYS = {
    "Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), "ArrowLeft": (37, ""), "ArrowRight": (39, ""),
    "Home": (36, ""), "End": (35, ""), "Space": (32, " "),
}  # fmt: skip
SHIFT = 8


def find_chromium() -> str:
    """The program. Skips the test where there is none; in CI it fails."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    if os.environ.get("CI"):
        pytest.fail("no Chromium: tools/setup.sh test installs it")
    pytest.skip("needs Debian's package chromium")


class Browser:
    """One browser; ``open`` makes tabs. Not thread-safe."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # It reads from 3 and writes to 4. Theirs must be others, or one would overwrite the other.
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_browser, from_browser)]
        command = [
            "bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "bash", program,
            "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking",
            "--disable-component-update", "--hide-scrollbars", f"--user-data-dir={self._profile.name}",
            "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, pass_fds=theirs, stderr=subprocess.DEVNULL)
        for fd in (to_browser, from_browser, *theirs):
            os.close(fd)
        self._rest = b""
        self._last_id = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The result of a command. Raises RuntimeError when it is refused, or not answered in 20 s."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + 20
        while self._last_id not in self._answers:
            self._receive(deadline - time.monotonic())
        answer = self._answers.pop(self._last_id)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, seconds: float) -> None:
        if not select.select([self._read], [], [], max(0, seconds))[0]:
            raise RuntimeError("the browser does not answer")
        data = os.read(self._read, 1 << 20)
        if not data:
            raise RuntimeError("the browser has ended")
        *messages, self._rest = (self._rest + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self.events.append(message)

    def next_event(self, method: str, session: str, seconds: float = 15) -> dict[str, Any]:
        """Parameters of the first event of this name that is not taken yet; waits for it."""
        deadline = time.monotonic() + seconds
        while True:
            for i, event in enumerate(self.events):
                if event["method"] == method and event.get("sessionId") == session:
                    params: dict[str, Any] = self.events.pop(i)["params"]
                    return params
            self._receive(deadline - time.monotonic())

    def open(self, url: str) -> Tab:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, target, session)
        tab.set_screen(1280, 800)
        tab.go(url)
        return tab

    def close(self) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._write)
            os.close(self._read)
            self._profile.cleanup()


class Tab:
    """A page, used as a person does."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser = browser
        self._target = target
        self._session = session
        for domain in ("Page", "Runtime", "Log", "Accessibility", "DOM"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # of several tabs one would have it

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def go(self, url: str) -> None:
        """Loads a page, whose tree is there on return; a module's scripts have run."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, expression: str) -> Any:
        """What JavaScript says, of a promise what it comes to. Raises RuntimeError for what it throws."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "thrown"))
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 15) -> None:
        """Waits for it to be true."""
        deadline = time.monotonic() + seconds
        while not self.run(f"Boolean({expression})"):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"not within {seconds} s: {expression}\n{self.run('document.body.innerText')}"
                )
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({selector!r})?.textContent ?? ''"))

    def click(self, selector: str) -> None:
        """In the middle of the element, which must be there and not covered."""
        x, y = self.run(
            f"""(() => {{
              const element = document.querySelector({selector!r});
              element.scrollIntoView({{ block: "nearest" }});
              const box = element.getBoundingClientRect();
              const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
              const hit = document.elementFromPoint(x, y);
              if (!element.contains(hit)) throw new Error(`${{hit?.outerHTML}} covers {selector}`);
              return [x, y];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, modifiers: int = 0) -> None:
        code, text = _KEYS[key]
        event = {
            "key": " " if key == "Space" else key,
            "code": key,
            "windowsVirtualKeyCode": code,
            "modifiers": modifiers,
        }
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def write(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def fill(self, selector: str, text: str) -> None:
        """Replaces what a field says, and leaves it."""
        self.run(f"(e => {{ e.focus(); e.select?.(); }})(document.querySelector({selector!r}))")
        if text:
            self.write(text)
        else:
            self.run("document.execCommand('delete')")
        self.press("Tab")  # a script that takes the focus away fires no "change"

    def choose(self, selector: str, value: str) -> None:
        change = f"(e => {{ e.value = {value!r}; e.dispatchEvent(new Event('change')); }})"
        self.run(f"{change}(document.querySelector({selector!r}))")

    def focused(self) -> str:
        """The id of what has the focus, or its text."""
        return str(self.run("document.activeElement.id || document.activeElement.textContent.trim()"))

    @contextmanager
    def intercepting(self, pattern: str) -> Iterator[Callable[..., dict[str, Any]]]:
        """Calls whose address matches do not reach the server.

        ``answer(status, body, headers)`` waits for one, answers it, and returns the JSON that it brought.
        """

        def answer(status: int = 200, body: str = "", **headers: str) -> dict[str, Any]:
            paused = self._browser.next_event("Fetch.requestPaused", self._session)
            self.call(
                "Fetch.fulfillRequest",
                requestId=paused["requestId"],
                responseCode=status,
                responseHeaders=[{"name": k.replace("_", "-"), "value": v} for k, v in headers.items()],
                body=base64.b64encode(body.encode()).decode(),
            )
            sent: dict[str, Any] = json.loads(paused["request"].get("postData", "{}"))
            return sent

        self.call("Fetch.enable", patterns=[{"urlPattern": pattern}])
        try:
            yield answer
        finally:
            self.call("Fetch.disable")

    def set_screen(self, width: int, height: int, is_phone: bool = False, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=is_phone,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=is_phone, maxTouchPoints=1)

    def set_media(self, **features: str) -> None:
        """prefers_color_scheme="dark" and the like."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=named)

    def accessibility_tree(self) -> list[dict[str, Any]]:
        """What a screen reader is given: nodes with role, name and properties as plain values."""
        nodes = []
        for node in self.call("Accessibility.getFullAXTree")["nodes"]:
            if not node["ignored"]:
                properties = {p["name"]: p["value"].get("value") for p in node.get("properties", ())}
                name = node.get("name", {}).get("value", "")
                description = node.get("description", {}).get("value", "")
                nodes.append(
                    {**properties, "role": node["role"]["value"], "name": name, "description": description}
                )
        return nodes

    def complaints(self) -> list[str]:
        """Errors on the console since the last call: of scripts and the policy, not of refused requests."""
        self.run("0")  # what has happened is told before this is answered
        found = []
        mine = [event for event in self._browser.events if event.get("sessionId") == self._session]
        for event in mine:
            self._browser.events.remove(event)
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"]))
            entry = event["params"].get("entry", {})
            if entry.get("level") == "error" and entry.get("source") != "network":
                found.append(entry["text"])
        return found

    def screenshot(self, path: Path) -> None:
        """A PNG or WebP, as the path says."""
        data = self.call("Page.captureScreenshot", format=path.suffix[1:], quality=70)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
