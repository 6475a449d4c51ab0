// The settings: what a request says beside its messages. A field that is left empty is not sent, and the server takes
// the model's own.

import { apiKey, setApiKey } from "./api.js";
import { checkKey, readMore, readNumber, readObject, readTools } from "./checks.js";
import { byId, make } from "./dom.js";

// [name in the request, label, attributes of the input]
const NUMBERS = [
  ["temperature", "Temperature", { min: 0 }],
  ["top_p", "Top p", { min: 0, max: 1 }],
  ["top_k", "Top k", { min: -1, step: 1 }],
  ["min_p", "Min p", { min: 0, max: 1 }],
  ["max_tokens", "Max tokens", { min: 1, step: 1 }],
  ["seed", "Seed", { step: 1 }],
  ["presence_penalty", "Presence penalty", { min: -2, max: 2 }],
  ["frequency_penalty", "Frequency penalty", { min: -2, max: 2 }],
  ["repetition_penalty", "Repetition penalty", { min: 0 }],
];

const EXAMPLE_TOOLS = [
  {
    type: "function",
    function: {
      name: "weather",
      description: "The weather of a place.",
      parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] },
    },
  },
];
const EXAMPLE_SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
};

export class Settings {
  #fields = []; // { input, error, put(body) }: what each adds to a request
  #tools;
  #toolChoice;

  constructor(parent) {
    parent.append(
      this.#group("Prompt", this.#area("system", "System prompt", { rows: 3 }, () => {})),
      this.#group("Sampling", make("div", { class: "numbers" }, ...NUMBERS.map((row) => this.#number(...row))),
        this.#area("stop", "Stop strings, one a line", { rows: 2 }, (body, text) => {
          const strings = text.split("\n").filter((line) => line !== "");
          if (strings.length > 0) body.stop = strings;
        })),
      this.#group("Answer", ...this.#formatFields()),
      this.#group("Tools", ...this.#toolFields()),
      this.#group("More", this.#area("more", "Further fields of the request, as JSON", { rows: 2, class: "code" },
        (body, text) => Object.assign(body, readMore(text)))),
      this.#group("Access", this.#keyField()),
    );
  }

  get systemPrompt() {
    return byId("setting-system").value.trim();
  }

  // What the fields say. Null when one is wrong: it says why, is shown and has the focus.
  read() {
    const body = {};
    let wrong = null;
    for (const field of this.#fields) {
      if (!this.#check(field, body)) wrong ??= field.input;
    }
    if (wrong === null) return body;
    document.dispatchEvent(new CustomEvent("show-settings"));
    for (let parent = wrong.closest("details"); parent; parent = parent.parentElement.closest("details")) {
      parent.open = true;
    }
    wrong.focus();
    return null;
  }

  // All fields but the key as they were at first.
  reset() {
    for (const { input } of this.#fields) {
      if (input.id === "setting-key") continue;
      if (input.tagName === "SELECT") input.selectedIndex = 0;
      else input.value = "";
      input.dispatchEvent(new Event("change"));
    }
  }

  #check(field, body = {}) {
    let message = "";
    try {
      field.put(body);
    } catch (error) {
      message = error.message;
    }
    field.input.setAttribute("aria-invalid", String(message !== ""));
    field.error.textContent = message;
    return message === "";
  }

  // Label, input and the place of its complaint. A field is checked when it is left, and before a request.
  #field(input, label, put) {
    const error = make("span", { class: "error", id: `${input.id}-error` });
    const field = { input, error, put };
    this.#fields.push(field);
    input.setAttribute("aria-describedby", error.id);
    input.addEventListener("change", () => this.#check(field));
    return make("div", { class: "field" }, make("label", { for: input.id }, label), input, error);
  }

  #number(name, label, attributes) {
    const input = make("input", {
      type: "number", inputmode: "decimal", step: "any", placeholder: "default", id: `setting-${name}`, ...attributes,
    });
    return this.#field(input, label, (body) => {
      const value = readNumber(input);
      if (value !== undefined) body[name] = value;
    });
  }

  #area(name, label, attributes, put) {
    const input = make("textarea", { id: `setting-${name}`, spellcheck: "false", ...attributes });
    return this.#field(input, label, (body) => put(body, input.value));
  }

  #select(name, label, options, put) {
    const made = options.map(([value, text]) => make("option", { value }, text));
    const input = make("select", { id: `setting-${name}` }, ...made);
    return this.#field(input, label, (body) => put(body, input.value));
  }

  #group(title, ...children) {
    const isOpen = title === "Prompt" || title === "Sampling";
    return make("details", { class: "group", open: isOpen }, make("summary", {}, title), ...children);
  }

  #exampleButton(id, value) {
    const insert = () => {
      const area = byId(id);
      area.value = JSON.stringify(value, null, 2);
      area.dispatchEvent(new Event("change"));
      area.focus();
    };
    return make("button", { type: "button", class: "quiet", onclick: insert }, "Insert an example");
  }

  #formatFields() {
    const formats = [["text", "Text"], ["json_object", "Any JSON object"], ["json_schema", "JSON of a schema"]];
    const format = this.#select("format", "Form of the answer", formats, (body, type) => {
      if (type === "json_object") body.response_format = { type };
    });
    const select = format.querySelector("select");
    const schema = this.#area("schema", "JSON schema", { rows: 8, class: "code" }, (body, text) => {
      if (select.value !== "json_schema") return;
      const value = readObject(text, "A schema");
      if (value === undefined) throw new Error("A schema is needed; or choose another form of the answer");
      body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: value } };
    });
    const part = make("div", { hidden: true }, schema, this.#exampleButton("setting-schema", EXAMPLE_SCHEMA));
    select.addEventListener("change", () => (part.hidden = select.value !== "json_schema"));
    return [format, part];
  }

  #toolFields() {
    const tools = this.#area("tools", "Tools, as JSON", { rows: 8, class: "code" }, (body, text) => {
      const value = readTools(text);
      if (value !== undefined) body.tools = value;
    });
    const choices = [["auto", "if the model wants"], ["required", "at least one"], ["none", "none"]];
    const choice = this.#select("tool-choice", "Calls", choices, (body, value) => {
      if (!body.tools || value === "auto") return;
      const named = body.tools.find((tool) => `function ${tool.function.name}` === value);
      body.tool_choice = named ? { type: "function", function: { name: named.function.name } } : value;
    });
    this.#tools = tools.querySelector("textarea");
    this.#toolChoice = choice.querySelector("select");
    this.#tools.addEventListener("change", () => this.#nameTools());
    return [tools, this.#exampleButton("setting-tools", EXAMPLE_TOOLS), choice];
  }

  // Each tool can be what must be called.
  #nameTools() {
    let tools = [];
    try {
      tools = readTools(this.#tools.value) ?? [];
    } catch {
      // Said beside the field.
    }
    const chosen = this.#toolChoice.value;
    [...this.#toolChoice.options].slice(3).forEach((option) => option.remove());
    for (const { function: { name } } of tools) {
      this.#toolChoice.append(make("option", { value: `function ${name}` }, name));
    }
    this.#toolChoice.value = chosen;
    if (this.#toolChoice.selectedIndex < 0) this.#toolChoice.selectedIndex = 0;
  }

  #keyField() {
    const input = make("input", { type: "password", autocomplete: "off", id: "setting-key" });
    input.value = apiKey();
    const field = this.#field(input, "API key, kept until this browser tab is closed", () => checkKey(input.value.trim()));
    input.addEventListener("change", () => {
      if (input.getAttribute("aria-invalid") === "true") return;
      setApiKey(input.value.trim());
      document.dispatchEvent(new CustomEvent("key-changed"));
    });
    return field;
  }
}
