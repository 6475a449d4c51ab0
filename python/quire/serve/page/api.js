// Calls of the server, and what is said when they fail.
//
// Addresses are relative to the page, so that it works behind a proxy that adds a path.

const KEY = "quire-api-key";
let keyInMemory = "";

// Kept for as long as this browser tab is open; where even that is forbidden, until the page is left.
export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) ?? keyInMemory;
  } catch {
    return keyInMemory;
  }
}

export function setApiKey(key) {
  keyInMemory = key;
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // keyInMemory has it.
  }
}

// An answer that is an error. `status` is HTTP's, `param` the field at fault or null.
export class ApiError extends Error {
  constructor(status, message, param = null, retryAfter = null) {
    super(message);
    this.status = status;
    this.param = param;
    this.retryAfter = retryAfter;
  }
}

// Returns the Response of a call that went well. Throws ApiError for another, TypeError when no answer came.
export async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  const text = await response.text();
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // Not the server's: a proxy's page, of which the status says enough.
  }
  const message = error.message ?? `${response.status} ${response.statusText}`.trim();
  throw new ApiError(response.status, message, error.param ?? null, response.headers.get("Retry-After"));
}

export async function getJson(path, options) {
  return (await call(path, options)).json();
}

export function postJson(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return call(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

// With a full stop, when it has no end.
export const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

// What went wrong, for people.
export function inWords(error) {
  if (!(error instanceof ApiError)) {
    return "The server does not answer, or the connection to it broke. Is it still running?";
  }
  const said = sentence(error.message);
  if (error.status === 401) return `The server asks for an API key: ${said} Settings have a field for it.`;
  if (error.status === 429) {
    const when = error.retryAfter ? ` It takes requests again in ${error.retryAfter} s or later.` : "";
    return `The server has too much to do: ${said}${when}`;
  }
  if (error.status === 413) return `The request is too long: ${said}`;
  if (error.status >= 500) return `The server failed: ${said}`;
  return `The server refused the request: ${said}`;
}
