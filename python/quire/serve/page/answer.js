// An answer as it comes: deltas of /v1/chat/completions, put together.

const SHORTEST = 0.02; // seconds

// The stream says that the answer failed, and why.
export class AnswerFailed extends Error {}

// Told of what has been added, by the names of its methods.
//   content(text), reasoning(text): the text that was added
//   toolCall(index, call): { id, name, arguments }, all that there is of it
export class Answer {
  content = "";
  reasoning = "";
  toolCalls = [];
  finishReason = null;
  usage = null;
  isComplete = false; // the stream said that it is at its end

  constructor(listener, now = () => performance.now()) {
    this.#listener = listener;
    this.#now = now;
    this.#begin = now();
  }
  #listener;
  #now;
  #begin;
  #firstTime = null;
  #firstTokens = 0;
  #lastTime = null;

  // The data of one event. Throws AnswerFailed, in the server's words, and SyntaxError for what is no JSON.
  take(data) {
    if (data === "[DONE]") {
      this.isComplete = true;
      return;
    }
    const event = JSON.parse(data);
    if (typeof event !== "object" || event === null) throw new SyntaxError("an event must be an object");
    if (event.error) throw new AnswerFailed(event.error.message ?? "it does not say why");
    if (event.usage) this.usage = event.usage;
    for (const choice of event.choices ?? []) {
      if (choice.index === 0) this.#add(choice);
    }
  }

  #add({ delta = {}, finish_reason: finishReason }) {
    if (finishReason) this.finishReason = finishReason;
    const reasoning = delta.reasoning ?? delta.reasoning_content;
    const content = delta.content;
    if (!reasoning && !content && !delta.tool_calls) return;
    this.#lastTime = this.#now();
    if (this.#firstTime === null) {
      this.#firstTime = this.#lastTime;
      this.#firstTokens = this.usage?.completion_tokens ?? 0;
    }
    if (reasoning) {
      this.reasoning += reasoning;
      this.#listener.reasoning(reasoning);
    }
    if (content) {
      this.content += content;
      this.#listener.content(content);
    }
    for (const part of delta.tool_calls ?? []) {
      const call = (this.toolCalls[part.index] ??= { id: "", name: "", arguments: "" });
      if (part.id) call.id = part.id;
      call.name += part.function?.name ?? "";
      call.arguments += part.function?.arguments ?? "";
      this.#listener.toolCall(part.index, call);
    }
  }

  get isEmpty() {
    return !this.content && this.toolCalls.length === 0;
  }

  // As the next request brings it. Reasoning stays here: templates leave that of earlier answers out.
  get message() {
    const message = { role: "assistant", content: this.content };
    const calls = this.toolCalls.filter(Boolean);
    if (calls.length > 0) {
      message.tool_calls = calls.map((call) => ({
        id: call.id,
        type: "function",
        function: { name: call.name, arguments: call.arguments },
      }));
    }
    return message;
  }

  // Milliseconds from the request to its first token; null before.
  get timeToFirstToken() {
    return this.#firstTime === null ? null : this.#firstTime - this.#begin;
  }

  // Tokens after the first ones, over the time they took; null when that is too short to be told from the time that
  // the browser took to read them.
  get tokensPerSecond() {
    const tokens = (this.usage?.completion_tokens ?? 0) - this.#firstTokens;
    const seconds = (this.#lastTime - this.#firstTime) / 1000;
    return tokens > 0 && seconds > SHORTEST ? tokens / seconds : null;
  }
}
