// The tab "Chat": a conversation, and the requests that it becomes.

import { Announcer } from "./announcer.js";
import { Answer, AnswerFailed } from "./answer.js";
import { getJson, inWords, postJson, sentence } from "./api.js";
import { byId, make, setNotice } from "./dom.js";
import { eventsOf } from "./event_reader.js";
import { MessageView } from "./message_view.js";
import { Painter } from "./painter.js";
import { Settings } from "./settings.js";

const EXAMPLES = ["Who are you?", "Tell me a short story about a lighthouse.", "What is a KV cache?"];
const NARROW = matchMedia("(max-width: 56rem)");
const TOUCH = matchMedia("(pointer: coarse)");

const REASONS = {
  length: "max_tokens, or the end of the model's context",
  abort: "the server ended it",
};

export class Chat {
  #entries = []; // { message, view }, in order
  #settings = new Settings(byId("fields"));
  #announcer = new Announcer(byId("announcer"));
  #request = null; // AbortController of the answer under way
  #messages = byId("messages");
  #prompt = byId("prompt");

  constructor() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#prompt.addEventListener("keydown", (event) => {
      // While an input method composes, Enter is its own.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    this.#prompt.addEventListener("input", () => this.#fitPrompt());
    byId("stop").addEventListener("click", () => this.#request?.abort());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing || byId("panel-chat").hidden) return;
      if (this.#request) this.#request.abort();
      else if (NARROW.matches) this.#showSettings(false);
    });
    byId("clear").addEventListener("click", () => this.#clear());
    byId("reset").addEventListener("click", () => this.#settings.reset());
    byId("toggle-settings").addEventListener("click", () => this.#showSettings(byId("settings").hidden));
    byId("close-settings").addEventListener("click", () => this.#showSettings(false));
    document.addEventListener("show-settings", () => this.#showSettings(true));
    document.addEventListener("key-changed", () => this.loadModels());
    for (const text of EXAMPLES) {
      const ask = () => {
        this.#prompt.value = text;
        this.#send();
      };
      byId("examples").append(make("li", {}, make("button", { type: "button", onclick: ask }, text)));
    }
    this.#setSettingsShown(!NARROW.matches);
    NARROW.addEventListener("change", () => this.#setSettingsShown(!NARROW.matches));
  }

  // Fills the picker; again when the server is back, or another key is given.
  async loadModels() {
    const picker = byId("model");
    try {
      const { data } = await getJson("v1/models");
      const chosen = picker.value;
      picker.replaceChildren(...data.map(({ id }) => make("option", { value: id }, id)));
      if (data.some(({ id }) => id === chosen)) picker.value = chosen;
      setNotice(byId("chat-notice"), "");
    } catch (error) {
      setNotice(byId("chat-notice"), inWords(error));
    }
  }

  #setSettingsShown(isShown) {
    byId("settings").hidden = !isShown;
    byId("toggle-settings").setAttribute("aria-expanded", String(isShown));
    document.body.classList.toggle("with-settings", isShown);
  }

  #showSettings(isShown) {
    const had = byId("settings").contains(document.activeElement);
    this.#setSettingsShown(isShown);
    // Where they take the place of the conversation, the focus goes along.
    if (isShown && NARROW.matches) byId("settings-heading").focus();
    if (!isShown && (had || NARROW.matches)) byId("toggle-settings").focus();
  }

  #fitPrompt() {
    this.#prompt.rows = 1;
    const line = parseFloat(getComputedStyle(this.#prompt).lineHeight);
    const padding = 18;
    this.#prompt.rows = Math.min(8, Math.max(1, Math.round((this.#prompt.scrollHeight - padding) / line)));
  }

  #send() {
    const text = this.#prompt.value;
    if (this.#request || !text.trim()) return;
    const settings = this.#settings.read();
    if (settings === null) return;
    this.#prompt.value = "";
    this.#fitPrompt();
    this.#addText("user", text, { Edit: () => this.#edit() });
    this.#answer(settings);
  }

  #addText(role, text, actions, more = {}) {
    const view = new MessageView(role, actions);
    view.addContent(text);
    this.#add({ message: { role, content: text, ...more }, view });
  }

  #add(entry) {
    byId("empty").hidden = true;
    this.#entries.push(entry);
    this.#messages.append(entry.view.element);
    this.#messages.scrollTop = this.#messages.scrollHeight;
  }

  #removeFrom(index) {
    for (const { view } of this.#entries.splice(index)) view.element.remove();
  }

  // Takes the last question and what was answered back into the composer.
  #edit() {
    const last = this.#entries.findLastIndex(({ message }) => message?.role === "user");
    const draft = this.#prompt.value;
    this.#prompt.value = this.#entries[last].message.content + (draft ? `\n${draft}` : "");
    this.#removeFrom(last);
    this.#setBusy(false);
    this.#fitPrompt();
    this.#prompt.focus();
  }

  #regenerate() {
    const settings = this.#settings.read();
    if (settings === null || this.#request) return;
    this.#removeFrom(this.#entries.length - 1);
    this.#answer(settings);
  }

  #clear() {
    this.#request?.abort();
    this.#removeFrom(0);
    this.#setBusy(false);
    this.#focusComposer();
    this.#announcer.say("The conversation is empty.");
  }

  // The request of the conversation so far. An answer that failed before it said anything is no part of it.
  #body(settings) {
    const messages = this.#entries.map(({ message }) => message).filter(Boolean);
    const system = this.#settings.systemPrompt;
    if (system) messages.unshift({ role: "system", content: system });
    return {
      model: byId("model").value || undefined,
      messages,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      ...settings,
    };
  }

  async #answer(settings) {
    const request = new AbortController();
    const body = this.#body(settings);
    const view = new MessageView("assistant", { Regenerate: () => this.#regenerate() });
    const entry = { message: null, view };
    const painter = new Painter(view, this.#messages);
    const answer = new Answer({
      content: (text) => {
        painter.content += text;
        painter.wake(answer);
        this.#announcer.add(text);
      },
      reasoning: (text) => {
        painter.reasoning += text;
        painter.wake(answer);
      },
      toolCall: (index, call) => {
        painter.calls.set(index, call);
        painter.wake(answer);
      },
    });
    this.#add(entry);
    view.setBusy(true);
    view.setStats("waiting for the first token");
    this.#request = request;
    this.#setBusy(true);
    let note = "";
    let isError = true;
    try {
      const response = await postJson("v1/chat/completions", body, request.signal);
      for await (const data of eventsOf(response)) answer.take(data);
      if (!answer.isComplete) note = "The connection ended before the answer did.";
      else if (answer.finishReason in REASONS) {
        note = `Ended early: ${REASONS[answer.finishReason]}.`;
        isError = answer.finishReason === "abort";
      } else if (answer.isEmpty) {
        note = "The answer is empty.";
        isError = false;
      }
    } catch (error) {
      if (request.signal.aborted) {
        note = "Stopped.";
        isError = false;
      } else if (error instanceof SyntaxError) {
        note = "The server sent an event that cannot be read.";
      } else if (error instanceof AnswerFailed) {
        note = `The answer failed: ${sentence(error.message)}`;
      } else {
        note = inWords(error);
      }
    }
    const wasAtEnd = painter.isAtEnd;
    painter.finish(answer);
    view.setBusy(false);
    if (note) view.addNote(note, isError);
    this.#announcer.finish();
    this.#announcer.say(note);
    if (this.#request !== request) return; // cleared meanwhile
    if (!answer.isEmpty) entry.message = answer.message;
    this.#request = null;
    this.#setBusy(false);
    this.#askForResults(view, answer);
    if (wasAtEnd) painter.follow();
  }

  #askForResults(view, answer) {
    const calls = answer.toolCalls.filter(Boolean);
    if (calls.length === 0) return;
    view.askForResults(calls, (texts) => {
      const settings = this.#settings.read();
      if (settings === null || this.#request) return;
      texts.forEach((text, i) => this.#addText("tool", text, {}, { tool_call_id: calls[i].id }));
      this.#answer(settings);
    });
  }

  // Not the field where that would bring up a keyboard on glass.
  #focusComposer() {
    (TOUCH.matches ? byId("send") : this.#prompt).focus();
  }

  #setBusy(isBusy) {
    if (!isBusy) this.#request = null;
    const send = byId("send");
    const stop = byId("stop");
    const had = document.activeElement;
    send.hidden = isBusy;
    stop.hidden = !isBusy;
    // What had the focus may be gone: the button was for this alone.
    if (isBusy && (had === send || had === document.body)) stop.focus();
    if (had === stop) this.#focusComposer();
    byId("clear").disabled = this.#entries.length === 0;
    byId("empty").hidden = this.#entries.length > 0;
    const lastQuestion = this.#entries.findLastIndex(({ message }) => message?.role === "user");
    this.#entries.forEach(({ view }, i) => {
      view.setActionsShown(!isBusy && (i === lastQuestion || i === this.#entries.length - 1));
    });
  }
}
