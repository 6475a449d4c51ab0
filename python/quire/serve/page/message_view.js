// A message of the conversation, as it is shown. All text of a model goes through text nodes.

import { copyText, make } from "./dom.js";

const NAMES = { user: "You", assistant: "Model", system: "System", tool: "Tool" };
// Laying out a text takes as long as it is, and a stream adds to it at every frame: only the last block changes.
const BLOCK = 4000;

// Text that grows. Its textContent is always all of it.
class GrowingText {
  #element;
  #node = null;

  constructor(element) {
    this.#element = element;
  }

  append(text) {
    for (let begin = 0; begin < text.length; ) {
      if (this.#node === null) {
        this.#node = document.createTextNode("");
        this.#element.append(make("div", {}));
        this.#element.lastChild.append(this.#node);
      }
      // A block ends after the first end of a line beyond its size: there nobody sees the seam.
      const room = Math.max(0, BLOCK - this.#node.length);
      const lineEnd = text.indexOf("\n", begin + room);
      const end = lineEnd < 0 ? text.length : lineEnd + 1;
      this.#node.appendData(text.slice(begin, end));
      if (lineEnd >= 0) this.#node = null;
      begin = end;
    }
  }
}

export class MessageView {
  // `actions` are buttons: { "Edit": function }.
  constructor(role, actions = {}) {
    this.#body = make("div", { class: "body" });
    this.#stats = make("span", { class: "stats" });
    this.#foot = make("div", { class: "foot" }, this.#stats);
    this.element = make(
      "article",
      { class: `message ${role}`, "aria-label": NAMES[role] ?? role },
      make("h3", {}, NAMES[role] ?? role),
      this.#body,
      this.#foot,
    );
    this.#addButton("Copy", async (button) => {
      button.textContent = (await copyText(this.text || this.#body.innerText)) ? "Copied" : "Not copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    for (const [name, action] of Object.entries(actions)) this.#addButton(name, action).hidden = true;
  }
  #body;
  #stats;
  #foot;
  #content = null;
  #reasoning = null;
  #calls = [];
  text = "";

  #addButton(name, action) {
    const button = make("button", { type: "button", class: "quiet" }, name);
    button.addEventListener("click", () => action(button));
    this.#foot.append(button);
    return button;
  }

  // Buttons but "Copy" are for the last of the conversation.
  setActionsShown(isShown) {
    for (const button of [...this.#foot.querySelectorAll("button")].slice(1)) button.hidden = !isShown;
    if (!isShown) this.element.querySelector("form")?.remove();
  }

  addContent(text) {
    this.text += text;
    if (this.#content === null) {
      const element = make("div", { class: "text" });
      this.#body.append(element);
      this.#content = new GrowingText(element);
    }
    this.#content.append(text);
  }

  addReasoning(text) {
    if (this.#reasoning === null) {
      const element = make("div", { class: "text" });
      this.#body.prepend(make("details", { class: "reasoning" }, make("summary", {}, "Reasoning"), element));
      this.#reasoning = new GrowingText(element);
    }
    this.#reasoning.append(text);
  }

  // Arguments come piece by piece; those of a call are shown anew.
  setToolCall(index, call) {
    if (!this.#calls[index]) {
      const name = make("code", {});
      const text = make("pre", { tabindex: "0", "aria-label": "Arguments" });
      this.#calls[index] = { name, text };
      this.#body.append(make("div", { class: "call" }, make("p", {}, "Calls ", name), text));
    }
    this.#calls[index].name.textContent = call.name;
    this.#calls[index].text.textContent = call.arguments;
  }

  // A form for what the tools gave; onSend gets the texts, in the order of `calls`.
  askForResults(calls, onSend) {
    const areas = calls.map(() => make("textarea", { rows: "2", spellcheck: "false" }));
    const rows = calls.map((call, i) => make("label", {}, `Result of ${call.name}`, areas[i]));
    const form = make("form", { class: "results", "aria-label": "Results of tools" }, ...rows, make("button", { type: "submit" }, "Send results"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      onSend(areas.map((area) => area.value));
    });
    this.#body.append(form);
  }

  setStats(text) {
    this.#stats.textContent = text;
  }

  setBusy(isBusy) {
    this.element.setAttribute("aria-busy", String(isBusy));
  }

  addNote(text, isError) {
    this.#body.append(make("p", { class: isError ? "error" : "note" }, text));
  }
}
