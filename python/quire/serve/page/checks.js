// Whether texts of the settings are what a request needs. Each returns the value, undefined for an empty text, and
// throws Error in words.

function parse(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`);
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

export function readObject(text, what) {
  if (!text.trim()) return undefined;
  const value = parse(text);
  if (!isObject(value)) throw new Error(`${what} must be an object: {…}`);
  return value;
}

// What the page says itself, and cannot do without.
const OWN = ["messages", "stream", "stream_options"];

export function readMore(text) {
  const fields = readObject(text, "This") ?? {};
  const own = OWN.find((name) => name in fields);
  if (own) throw new Error(`The page sends ${own} itself`);
  return fields;
}

export function readTools(text) {
  if (!text.trim()) return undefined;
  const tools = parse(text);
  if (!Array.isArray(tools)) throw new Error("Tools must be a list: [{…}, …]");
  const names = new Set();
  tools.forEach((tool, i) => {
    const at = `Tool ${i + 1}`;
    if (!isObject(tool) || tool.type !== "function" || !isObject(tool.function)) {
      throw new Error(`${at} must be {"type": "function", "function": {…}}`);
    }
    const { name, parameters } = tool.function;
    if (typeof name !== "string" || !/^[\w.-]{1,64}$/.test(name)) {
      throw new Error(`${at} needs a function.name of letters, digits, "_", "-" and ".", at most 64`);
    }
    if (parameters !== undefined && !isObject(parameters)) {
      throw new Error(`${at} (${name}): function.parameters must be a JSON schema: {…}`);
    }
    if (names.has(name)) throw new Error(`${at}: there is a ${name} already`);
    names.add(name);
  });
  return tools.length > 0 ? tools : undefined;
}

// A number input's value. The browser keeps texts that are none to itself.
export function readNumber(input) {
  const { validity, min, max } = input;
  if (validity.badInput) throw new Error("This is not a number");
  if (validity.rangeUnderflow) throw new Error(`At least ${min}`);
  if (validity.rangeOverflow) throw new Error(`At most ${max}`);
  if (validity.stepMismatch) throw new Error("A whole number");
  if (input.value === "") return undefined;
  const value = Number(input.value);
  if (input.step === "1" && !Number.isSafeInteger(value)) throw new Error(`At most ${Number.MAX_SAFE_INTEGER}`);
  return value;
}

// What can be sent in a header.
export function checkKey(text) {
  if (!/^[\x21-\x7e]*$/.test(text)) throw new Error("A key is ASCII text without blanks");
  return text;
}
