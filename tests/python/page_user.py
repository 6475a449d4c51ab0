"""What a person does on the page of ``quire serve``."""

from __future__ import annotations

import json
from typing import Any

from browser import Browser, Tab
from serving import RunningServer

_LAST = "[...document.querySelectorAll('.assistant')].at(-1)"


def opened(browser: Browser, server: RunningServer) -> Tab:
    tab = browser.open(server.url + "/")
    tab.until("document.querySelector('#model').options.length > 0")
    return tab


def set_field(tab: Tab, name: str, text: str) -> None:
    tab.run("document.querySelectorAll('details.group').forEach(group => { group.open = true; })")
    tab.fill(f"#setting-{name}", text)


def begin(tab: Tab, text: str) -> None:
    tab.run("document.querySelector('#prompt').focus()")
    tab.write(text)
    tab.press("Enter")


def wait_for_end(tab: Tab) -> None:
    tab.until(f"!document.querySelector('#send').hidden && {_LAST} !== undefined")


def ask(tab: Tab, text: str) -> str:
    """The last message, when it is complete."""
    begin(tab, text)
    wait_for_end(tab)
    return answer_of(tab)


def answer_of(tab: Tab) -> str:
    return str(tab.run(f"{_LAST}.querySelector('.body > .text')?.textContent"))


def note_of(tab: Tab) -> str:
    """What is said about the last answer."""
    return str(tab.run(f"{_LAST}.querySelector('.note, p.error')?.textContent"))


def stream(*events: dict[str, Any] | str) -> str:
    """The body of an answer, for ``Tab.intercepting``."""
    texts = (event if isinstance(event, str) else json.dumps(event) for event in events)
    return "".join(f"data: {text}\n\n" for text in texts)


def delta(reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}
