"""Takes the pictures of docs/images, in a minute: ``python tests/python/page_screenshots.py``."""

from __future__ import annotations

import threading
import time
from random import Random

import httpx
from browser import Browser, Tab, find_chromium
from page_user import ask, opened, set_field
from paths import ROOT
from serving import running_server

FOLDER = ROOT / "docs" / "images"
SCREEN = (1040, 660)
WIDE_SCREEN = (1240, 600)
LARGEST = 60_000  # bytes of a picture
WATCHED_SECONDS = 55


def ask_often(url: str, ended: threading.Event, seed: int) -> None:
    """A client whose questions come and go."""
    rng = Random(seed)
    stories = ["a lighthouse", "a baker", "a golden bird", "a clock"]
    while not ended.is_set():
        question = f"Tell me a story about {rng.choice(stories)}."
        body = {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": rng.choice([60, 300, 1500]),
            "ignore_eos": True,
        }
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        ended.wait(rng.expovariate(20.0))


def save(tab: Tab, name: str) -> None:
    path = FOLDER / f"{name}.webp"
    tab.screenshot(path)
    assert path.stat().st_size < LARGEST, f"{path} has {path.stat().st_size} bytes"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    browser = Browser(find_chromium())
    try:
        with running_server("--tool-parser", "hermes", "--max-num-seqs", "4") as server:
            tab = opened(browser, server)
            tab.set_screen(*SCREEN)
            set_field(tab, "temperature", "0")
            set_field(tab, "seed", "1")
            tab.run("document.querySelectorAll('details.group').forEach((e, i) => { e.open = i < 2; })")
            tab.run("document.querySelector('#settings').scrollTop = 0")
            ask(tab, "What is a KV cache?")
            ask(tab, "Tell me a short story about a lighthouse.")
            save(tab, "page-chat")
            tab.set_media(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
            tab.set_screen(390, 700, is_phone=True)
            tab.until("document.querySelector('#settings').hidden")
            tab.click("#clear")
            ask(tab, "Who are you?")
            save(tab, "page-phone")
            tab.set_screen(*WIDE_SCREEN)
            tab.click("#tab-engine")
            tab.choose("#range", "60")
            ended = threading.Event()
            clients = [threading.Thread(target=ask_often, args=(server.url, ended, i)) for i in range(7)]
            for client in clients:
                client.start()
            time.sleep(WATCHED_SECONDS)
            save(tab, "page-engine")
            ended.set()
            for client in clients:
                client.join()
    finally:
        browser.close()


if __name__ == "__main__":
    main()
