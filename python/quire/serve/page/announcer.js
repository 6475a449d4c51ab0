// What a screen reader says of an answer: sentences when they are finished. Each token would be said by itself.

import { make } from "./dom.js";

// A sentence ends before a blank, a line anywhere; CJK writes no blanks.
const SENTENCE = /[^\n]*?(?:[.!?\u2026]["')\]\u201d\u2019]*(?=\s)|[\u3002\uff01\uff1f]|\n)/y;

export class Announcer {
  #element;
  #rest = "";

  constructor(element) {
    this.#element = element;
  }

  say(text) {
    if (!text.trim()) return;
    this.#element.append(make("p", {}, text.trim()));
    while (this.#element.childElementCount > 20) this.#element.firstChild.remove(); // long said
  }

  add(text) {
    this.#rest += text;
    let begin = 0;
    SENTENCE.lastIndex = 0;
    for (let found = SENTENCE.exec(this.#rest); found; found = SENTENCE.exec(this.#rest)) {
      this.say(found[0]);
      begin = SENTENCE.lastIndex;
    }
    this.#rest = this.#rest.slice(begin);
    if (this.#rest.length > 400) this.finish(); // code, or what else has no sentences
  }

  finish() {
    this.say(this.#rest);
    this.#rest = "";
  }
}
