// Shows an answer once a frame: tokens may come faster.

export class Painter {
  content = "";
  reasoning = "";
  calls = new Map();
  #view;
  #scroller;
  #frame = 0;

  constructor(view, scroller) {
    this.#view = view;
    this.#scroller = scroller;
  }

  wake(answer) {
    this.#frame ||= requestAnimationFrame(() => this.#paint(answer));
  }

  finish(answer) {
    cancelAnimationFrame(this.#frame);
    this.#paint(answer);
  }

  get isAtEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight < 60;
  }

  // For who was at the end, and did not scroll back to read.
  follow() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  #paint(answer) {
    this.#frame = 0;
    const wasAtEnd = this.isAtEnd;
    if (this.reasoning) this.#view.addReasoning(this.reasoning);
    if (this.content) this.#view.addContent(this.content);
    for (const [index, call] of this.calls) this.#view.setToolCall(index, call);
    this.reasoning = this.content = "";
    this.calls.clear();
    this.#view.setStats(statsOf(answer));
    if (wasAtEnd) this.follow();
  }
}

function statsOf({ timeToFirstToken, tokensPerSecond, usage }) {
  const parts = [];
  if (timeToFirstToken !== null) parts.push(`first token ${timeToFirstToken.toFixed(0)} ms`);
  if (tokensPerSecond !== null) {
    const digits = tokensPerSecond < 100 ? 1 : 0;
    parts.push(`${tokensPerSecond.toLocaleString("en", { maximumFractionDigits: digits })} tokens/s`);
  }
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`${usage.prompt_tokens} prompt${cached ? ` (${cached} cached)` : ""} + ${usage.completion_tokens} tokens`);
  }
  return parts.join(" · ");
}
