"""The page for everybody: by keyboard, by ear, on a phone, in the dark, at rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from browser import SHIFT, Browser, Tab
from page_user import ask, delta, opened, set_field, stream
from serving import RunningServer, running_server

# Roles of what is used, which must have a name.
CONTROLS = {
    "button", "textbox", "combobox", "spinbutton", "tab", "link", "DisclosureTriangle", "checkbox",
}  # fmt: skip
PHONE = (320, 640)  # the smallest

# Every text that is shown: [contrast with what is behind it, what it is].
CONTRASTS = """(() => {
  const rgb = (color) => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const luminance = (color) => {
    const [r, g, b] = color.map((part) => {
      const c = part / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((part, i) => part * a + under[i] * (1 - a));
  const behind = (element) => {
    if (element === null) return [255, 255, 255];
    const color = rgb(getComputedStyle(element).backgroundColor);
    return color[3] === 1 ? color.slice(0, 3) : over(color, behind(element.parentElement));
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    if (!element.checkVisibility() || element.closest(".unseen, :disabled")) continue;
    const style = getComputedStyle(element);
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const measure = (color, what) => {
      const ground = behind(element);
      found.push([contrast(over(rgb(color), ground), ground), what + " " + element.outerHTML.slice(0, 80)]);
    };
    if (hasText) measure(element.namespaceURI.endsWith("svg") ? style.fill : style.color, "text");
    if (element.placeholder) measure(getComputedStyle(element, "::placeholder").color, "placeholder");
    if (element.matches("input, select, textarea") || element.matches(".bar button")) {
      const ground = behind(element.parentElement);
      found.push([contrast(rgb(style.borderTopColor).slice(0, 3), ground) * 1.5, "edge " + element.id]);
    }
  }
  return found;
})()"""

ANSWER = stream(
    delta(reasoning="Think."),
    delta(content="An answer."),
    delta(tool_calls=[{"index": 0, "id": "1", "function": {"name": "find", "arguments": "{}"}}]),
    {"error": {"message": "no memory"}},
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
def tab(browser: Browser, server: RunningServer) -> Iterator[Tab]:
    """A page that shows everything it can."""
    tab = opened(browser, server)
    set_field(tab, "temperature", "-1")
    set_field(tab, "temperature", "0")
    set_field(tab, "max_tokens", "20")
    ask(tab, "Who are you?")
    with tab.intercepting("*/v1/chat/completions") as answer:
        tab.run("document.querySelector('#prompt').focus()")
        tab.write("And?")
        tab.press("Enter")
        answer(200, ANSWER)
        tab.until("document.querySelector('.assistant p.error')")
    tab.run("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    tab.choose("#setting-format", "json_schema")
    set_field(tab, "more", "[")
    yield tab
    complaints = tab.complaints()
    tab.close()
    assert complaints == []


@pytest.fixture(autouse=True)
def at_first(request: pytest.FixtureRequest) -> None:
    if "tab" in request.fixturenames:
        tab: Tab = request.getfixturevalue("tab")
        tab.set_screen(1280, 800)
        tab.click("#tab-chat")


def named(nodes: list[dict[str, Any]], role: str) -> list[str]:
    return [node["name"] for node in nodes if node["role"] == role]


def test_what_a_screen_reader_is_given(tab: Tab) -> None:
    nodes = tab.accessibility_tree()
    assert {node["role"] for node in nodes} & CONTROLS >= {
        "button",
        "textbox",
        "combobox",
        "spinbutton",
        "tab",
    }
    assert [node for node in nodes if node["role"] in CONTROLS and not node["name"].strip()] == []
    assert len(named(nodes, "banner")) == len(named(nodes, "main")) == 1
    assert named(nodes, "tablist") == ["Views"]
    assert [(n["name"], n["selected"]) for n in nodes if n["role"] == "tab"] == [
        ("Chat", True),
        ("Engine", False),
    ]
    assert named(nodes, "tabpanel") == ["Chat"]
    assert named(nodes, "log") == ["Messages"]
    assert named(nodes, "complementary") == ["Settings"]
    assert named(nodes, "region") == ["Conversation"]
    assert set(named(nodes, "form")) == {"Your message", "Results of tools"}
    assert named(nodes, "article") == ["You", "Model", "You", "Model"]
    assert [name for name in named(nodes, "heading") if name in ("Quire", "Conversation", "Settings")] == [
        "Quire",
        "Conversation",
        "Settings",
    ]
    [wrong] = [node for node in nodes if node.get("invalid") == "true"]
    assert wrong["name"].startswith("Further fields")
    assert wrong["description"].startswith("This is not JSON")
    tab.click("#tab-engine")
    nodes = tab.accessibility_tree()
    assert named(nodes, "tabpanel") == ["Engine"]
    assert [node for node in nodes if node["role"] in CONTROLS and not node["name"].strip()] == []
    plots = [name for role in ("image", "img") for name in named(nodes, role) if name]
    assert len(plots) == 8
    assert any(name.startswith("KV cache in use. in use: now ") for name in plots)


def test_ids_are_of_one_element_and_what_refers_to_them_finds_it(tab: Tab) -> None:
    assert (
        tab.run("""(() => {
      const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
      const wrong = ids.filter((id, i) => ids.indexOf(id) !== i);
      for (const name of ["for", "aria-controls", "aria-labelledby", "aria-describedby"]) {
        for (const e of document.querySelectorAll(`[${name}]`)) {
          wrong.push(...e.getAttribute(name).split(" ").filter(id => document.getElementById(id) === null));
        }
      }
      return wrong;
    })()""")
        == []
    )
    assert tab.run("document.documentElement.lang") == "en"


def test_tabs_have_arrow_keys(tab: Tab) -> None:
    tab.run("document.querySelector('#tab-chat').focus()")
    for key, tab_id in (
        ("ArrowRight", "engine"), ("ArrowRight", "chat"), ("ArrowLeft", "engine"), ("Home", "chat"),
        ("End", "engine"),
    ):  # fmt: skip
        tab.press(key)
        assert tab.focused() == f"tab-{tab_id}"
        assert tab.run(
            "[...document.querySelectorAll('[role=tabpanel]')].filter(e => !e.hidden).map(e => e.id)"
        ) == [f"panel-{tab_id}"]
        assert tab.run(
            "[...document.querySelectorAll('[role=tab]')].filter(e => e.tabIndex === 0).map(e => e.id)"
        ) == [f"tab-{tab_id}"]


def test_the_keyboard_alone_reaches_everything_in_order_and_shows_where_it_is(tab: Tab) -> None:
    tab.run("document.activeElement.blur(); document.querySelector('#tab-chat').focus()")
    reached = []
    for _ in range(80):
        tab.press("Tab")
        if tab.run("document.activeElement === document.body || document.activeElement.id === 'tab-chat'"):
            break
        has_outline = "(s => s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2)"
        assert tab.run(f"{has_outline}(getComputedStyle(document.activeElement))"), tab.focused()
        reached.append(tab.focused())
    order = [
        "model",
        "clear",
        "toggle-settings",
        "messages",
        "prompt",
        "send",
        "reset",
        "setting-system",
        "setting-top_p",
    ]
    assert [name for name in reached if name in order] == order
    everything = tab.run("""[...document.querySelectorAll("button, input, select, textarea, summary")]
      .filter(e => e.checkVisibility() && e.tabIndex >= 0 && !e.disabled && e.role !== "tab")
      .map(e => e.id || e.textContent.trim())""")
    assert set(everything) <= set(reached)
    tab.press("Tab", SHIFT)  # and back


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_told_from_what_is_behind_them(tab: Tab, scheme: str) -> None:
    tab.set_media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")  # colours do not fade in
    for name in ("chat", "engine"):
        tab.click(f"#tab-{name}")
        measured = tab.run(CONTRASTS)
        assert len(measured) > 40
        assert [entry for entry in measured if entry[0] < 4.5] == []


def test_nothing_moves_for_whom_that_is_too_much(tab: Tab) -> None:
    moving = """[...document.querySelectorAll("*")].filter(e => {
      const style = getComputedStyle(e);
      return style.animationName !== "none" || parseFloat(style.transitionDuration) > 0;
    }).length"""
    tab.set_media(prefers_reduced_motion="reduce")
    assert tab.run(moving) == 0


def test_a_phone(tab: Tab) -> None:
    tab.set_screen(*PHONE, is_phone=True)
    tab.until("matchMedia('(pointer: coarse)').matches && document.querySelector('#settings').hidden")
    assert too_small(tab) == [] and too_wide(tab) == []
    tab.click("#toggle-settings")
    assert tab.focused() == "settings-heading"
    assert not tab.run("document.querySelector('.conversation').checkVisibility()")
    assert too_small(tab) == [] and too_wide(tab) == []
    tab.press("Escape")
    assert tab.focused() == "toggle-settings"
    # A field that is wrong is shown, though it was not.
    tab.run("document.querySelector('#prompt').focus()")
    tab.write("Hi")
    tab.press("Enter")
    assert tab.focused() == "setting-schema"
    tab.click("#close-settings")
    tab.fill("#prompt", "")
    tab.click("#tab-engine")
    tab.until("document.querySelectorAll('.plot text').length > 0")
    assert too_small(tab) == [] and too_wide(tab) == []


def too_small(tab: Tab) -> Any:
    """What a finger would miss: less than 44 pixels high or wide."""
    return tab.run("""[...document.querySelectorAll("button, input, select, textarea, summary")]
      .filter(e => e.checkVisibility())
      .filter(e => Math.min(e.getBoundingClientRect().width, e.getBoundingClientRect().height) < 43.9)
      .map(e => e.outerHTML.slice(0, 90))""")


def too_wide(tab: Tab) -> Any:
    """What is cut off, or would have to be scrolled."""
    return tab.run("""[...document.querySelectorAll("html, body, body *:not(svg *, .unseen)")]
      .filter(e => e.checkVisibility() && e.clientWidth > 1 && !e.closest("select, textarea, input"))
      .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5 ||
                   (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== "visible"))
      .map(e => e.outerHTML.slice(0, 90))""")


def test_it_asks_for_nothing_but_its_own_files_and_the_servers(
    browser: Browser, server: RunningServer
) -> None:
    tab = opened(browser, server)
    names = tab.run("performance.getEntriesByType('resource').map(e => e.name)")
    tab.close()
    assert len(names) > 15
    paths = {name.removeprefix(server.url) for name in names}
    assert {path for path in paths if not path.startswith("/page/")} == {"/v1/models", "/metrics"}
    for path in paths:
        assert httpx.get(server.url + path).status_code == 200
