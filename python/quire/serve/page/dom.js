// Elements, made without HTML: whatever a text says, it stays a text.

export const byId = (id) => document.getElementById(id);

// make("button", { type: "button", disabled: true, onclick: f }, "Copy")
// An attribute that is false, null or undefined is left out; children are elements or texts.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children);
  return element;
}

// Shows a notice, or takes it away when there is no text. A text that stands is not set again: a screen reader
// would say it twice.
export function setNotice(element, text) {
  element.hidden = !text;
  if (element.textContent !== text) element.textContent = text;
}

// navigator.clipboard is there only on pages of https and localhost.
export async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // No permission: the older way may still be open.
    }
  }
  const before = document.activeElement;
  const area = make("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  before?.focus();
  return copied;
}
