// The tab "Engine": polls /metrics and shows what it says.
//
// It polls, rather than have the server push: the server needs no route, state or task for it, what it shows is what
// Prometheus gets, and a page that nobody looks at costs nothing.

import { ApiError, call, inWords } from "./api.js";
import { byId, make, setNotice } from "./dom.js";
import { readExposition } from "./exposition.js";
import { History, HISTOGRAM_NAMES, NAMES } from "./history.js";
import { figuresOf, Plot } from "./plot.js";

const SHOWN_MS = 1000;
const BESIDE_MS = 5000; // while the other tab is shown
const LONGEST_WAIT_MS = 10000; // between tries of a server that is away
const TIMEOUT_MS = 5000;

const count = (value) => Math.round(value).toLocaleString("en");
const short = (value, digits) => String(Number(value.toPrecision(digits))); // 0.5, not 0.50
const rate = (value) => (value >= 100 ? count(value) : short(value, 2));
const percent = (value) => `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)}%`;
function duration(seconds) {
  if (seconds === 0) return "0";
  if (seconds >= 1) return `${short(seconds, 3)} s`;
  const ms = seconds * 1000;
  return ms >= 100 ? `${ms.toFixed(0)} ms` : `${short(ms, 2)} ms`;
}
const shown = (value, format) => (Number.isFinite(value) ? format(value) : "–");

const within = (bound) => (bound === Infinity ? "95% beyond all buckets" : `95% within ${duration(bound)}`);

// [name, value of a point, what is said besides]
const TILES = [
  ["Running", (p) => shown(p.running, count), () => "requests"],
  ["Waiting", (p) => shown(p.waiting, count), () => "requests"],
  ["KV cache", (p) => shown(p.kvUsage, percent), (p) => `${shown(p.blocksUsed, count)} of ${shown(p.blocks, count)} blocks`],
  ["Prefix cache hits", (p) => shown(p.hitRate ?? p.hitRateOfAll, percent),
    (p) => (Number.isFinite(p.hitRate) ? `of 30 s; ${shown(p.hitRateOfAll, percent)} in all` : "of all prompt tokens")],
  ["Generation", (p) => shown(p.generation, rate), () => "tokens/s"],
  ["Prompts", (p) => shown(p.prompt, rate), () => "tokens/s"],
  ["Step", (p) => shown(p.tokenGap, duration), (p) => (p.tokenGap95 ? within(p.tokenGap95) : "none just now")],
  ["Preemptions", (p) => shown(p.allPreemptions, count), () => "since the start"],
];

const PLOTS = [
  { title: "Requests", format: rate, series: [{ key: "running", name: "running" }, { key: "waiting", name: "waiting" }] },
  { title: "Tokens/s", format: rate, series: [{ key: "generation", name: "generated" }, { key: "prompt", name: "prompts" }] },
  { title: "KV cache in use", format: percent, most: 1, series: [{ key: "kvUsage", name: "in use" }] },
  { title: "Prefix cache hits, of 30 s", format: percent, most: 1, series: [{ key: "hitRate", name: "found" }] },
  { title: "Step: time between outputs", format: duration, series: [{ key: "tokenGap", name: "mean" }] },
  { title: "Time to first token", format: duration, series: [{ key: "firstToken", name: "mean" }] },
  { title: "Tokens a step", format: rate, series: [{ key: "stepTokens", name: "mean" }] },
  { title: "Preemptions/s", format: rate, series: [{ key: "preemptions", name: "preemptions" }] },
];

const seconds = () => performance.now() / 1000;

export class EngineView {
  history = new History();
  #plots = PLOTS.map((made) => new Plot(made));
  #isShown = false;
  #timer = 0;
  #failures = 0;
  #poll = null; // AbortController of the poll under way
  #tiles = TILES.map(([name, value, besides]) => ({ name, value, besides, big: make("dd", {}), small: make("dd", {}) }));
  #onBack;

  // onBack is called when the server answers after it did not.
  constructor(onBack) {
    this.#onBack = onBack;
    for (const { name, big, small } of this.#tiles) {
      big.className = "big";
      small.className = "small";
      byId("tiles").append(make("div", { class: "tile" }, make("dt", {}, name), big, small));
    }
    byId("plots").append(...this.#plots.map(({ element }) => element));
    byId("range").addEventListener("change", () => this.#show());
    document.addEventListener("visibilitychange", () => this.#restart());
    document.addEventListener("key-changed", () => this.#restart());
    addEventListener("resize", () => this.#show());
    byId("panel-engine").querySelector(".figures").addEventListener("toggle", () => this.#show());
    this.#restart();
  }

  setShown(isShown) {
    this.#isShown = isShown;
    this.#restart();
  }

  // Polls now, and then again and again: unless nobody can see it.
  #restart() {
    clearTimeout(this.#timer);
    this.#poll?.abort();
    this.#poll = null;
    if (!document.hidden) this.#next();
    this.#show();
  }

  async #next() {
    const poll = new AbortController();
    this.#poll = poll;
    const timeout = setTimeout(() => poll.abort(), TIMEOUT_MS);
    let text = null;
    let failure = null;
    try {
      text = await (await call("metrics", { signal: poll.signal })).text();
    } catch (error) {
      failure = error;
    }
    clearTimeout(timeout);
    if (this.#poll !== poll) return; // another has begun
    this.#poll = null;
    if (failure === null) this.#take(text);
    else this.#fail(failure);
    this.#timer = setTimeout(() => this.#next(), this.#wait());
    this.#show();
  }

  #wait() {
    const usual = this.#isShown ? SHOWN_MS : BESIDE_MS;
    return this.#failures === 0 ? usual : Math.min(LONGEST_WAIT_MS, SHOWN_MS * 2 ** (this.#failures - 1));
  }

  #take(text) {
    if (this.#failures > 0) this.#onBack();
    this.#failures = 0;
    this.history.add(seconds(), readExposition(text, NAMES, HISTOGRAM_NAMES));
    const { running, waiting } = this.history.points.at(-1);
    this.#setStatus("up", `${shown(running, count)} running, ${shown(waiting, count)} waiting`);
    const { restarts } = this.history;
    const times = restarts === 1 ? "once" : `${restarts} times`;
    setNotice(byId("engine-notice"), restarts ? `The server was started anew ${times} since this page was opened.` : "");
  }

  #fail(error) {
    this.#failures += 1;
    this.history.addGap(seconds());
    if (error instanceof ApiError) {
      this.#setStatus(error.status < 500 ? "refused" : "down", error.status === 401 ? "needs an API key" : `error ${error.status}`);
      setNotice(byId("engine-notice"), error.status === 404 ? "This server has no /metrics." : inWords(error));
      return;
    }
    this.#setStatus("down", "no answer");
    const text = "The server does not answer. The page goes on asking; what it has seen stays.";
    setNotice(byId("engine-notice"), text);
  }

  #setStatus(state, text) {
    const status = byId("status");
    status.dataset.state = state;
    if (status.textContent !== text) status.textContent = text;
  }

  #show() {
    if (!this.#isShown || document.hidden) return;
    const { points } = this.history;
    const end = seconds();
    const begin = end - Number(byId("range").value);
    const last = this.#failures > 0 ? {} : (points.at(-1) ?? {});
    for (const { value, besides, big, small } of this.#tiles) {
      big.textContent = value(last);
      small.textContent = besides(last);
    }
    for (const plot of this.#plots) plot.draw(points, begin, end);
    if (byId("panel-engine").querySelector(".figures").open) this.#fillTable(points.filter(({ time }) => time >= begin));
  }

  #fillTable(points) {
    const rows = this.#plots.flatMap(({ title, series, format }) =>
      series.map(({ key, name }) => {
        const figures = figuresOf(points, key) ?? {};
        const cells = ["now", "least", "mean", "most"].map((which) => make("td", {}, shown(figures[which], format)));
        return make("tr", {}, make("th", { scope: "row" }, series.length > 1 ? `${title}: ${name}` : title), ...cells);
      }));
    byId("figures").replaceChildren(...rows);
  }
}
