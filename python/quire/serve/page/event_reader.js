// Server-sent events, from a body that is being read. EventSource cannot send a body, nor a key.

// Takes text in any pieces; gives the data of the events that have ended, in order.
export class EventReader {
  #rest = "";
  #data = [];

  push(text) {
    const events = [];
    this.#rest += text;
    let begin = 0;
    // A "\r" at the very end may be half of "\r\n".
    const lineEnd = /\r\n|\n|\r(?!$)/g;
    for (let found = lineEnd.exec(this.#rest); found; found = lineEnd.exec(this.#rest)) {
      const line = this.#rest.slice(begin, found.index);
      begin = lineEnd.lastIndex;
      if (line === "") {
        if (this.#data.length > 0) events.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line === "data" || line.startsWith("data:")) {
        this.#data.push(line.slice(5).replace(/^ /, ""));
      }
    }
    this.#rest = this.#rest.slice(begin);
    return events;
  }
}

// The data of each event of a Response, until its body ends. Throws when the connection breaks.
export async function* eventsOf(response) {
  const reader = new EventReader();
  const decoder = new TextDecoder(); // a character may come in two pieces
  const body = response.body.getReader();
  for (;;) {
    const { done, value } = await body.read();
    if (done) return;
    yield* reader.push(decoder.decode(value, { stream: true }));
  }
}
