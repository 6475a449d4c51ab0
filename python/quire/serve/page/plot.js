// Lines over time, as SVG. A plot can be read with a pointer or the arrow keys, and says in words what it shows.

import { make } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 132;
const LEFT = 54;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// The least of 1, 2, 5, 10, ... that is not below.
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((bound) => bound >= value * 0.999999);
}

// Of a series: { now, least, mean, most }, null without any values.
export function figuresOf(points, key) {
  const values = points.map((point) => point[key]).filter((value) => Number.isFinite(value));
  if (values.length === 0) return null;
  const last = points.at(-1)[key];
  return {
    now: Number.isFinite(last) ? last : null,
    least: Math.min(...values),
    mean: values.reduce((sum, value) => sum + value, 0) / values.length,
    most: Math.max(...values),
  };
}

export class Plot {
  // series: [{ key, name }], at most two; format: number to text; most: the scale's end where it is fixed.
  constructor({ title, series, format, most }) {
    this.title = title;
    this.series = series;
    this.format = format;
    this.#most = most;
    this.#readout = make("span", { class: "readout" });
    const names = series.length < 2 ? [] : series.map(({ name }, i) => make("span", { class: `legend line-${i}` }, name));
    this.#svg = draw("svg", { role: "img", tabindex: "0", height: HEIGHT });
    this.element = make(
      "figure",
      { class: "plot" },
      make("figcaption", {}, make("span", { class: "title" }, title), ...names, this.#readout),
      this.#svg,
    );
    this.#svg.addEventListener("pointermove", (event) => this.#pointAt(event.offsetX));
    this.#svg.addEventListener("pointerleave", () => this.#setCursor(null));
    this.#svg.addEventListener("blur", () => this.#setCursor(null));
    this.#svg.addEventListener("keydown", (event) => this.#step(event));
  }
  #most;
  #readout;
  #svg;
  #points = [];
  #x = () => 0;
  #cursor = null; // time of the point that is read

  // Draws the points from `begin` to `end`, in seconds.
  draw(points, begin, end) {
    const width = this.#svg.clientWidth;
    if (width === 0) return; // not shown
    this.#points = points.filter(({ time }) => time >= begin);
    const highest = Math.max(0, ...this.series.flatMap(({ key }) => this.#points.map((point) => point[key] ?? 0)));
    const top = this.#most ?? roundUp(highest);
    this.#x = (time) => LEFT + ((time - begin) / (end - begin)) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const value of [0, top / 2, top]) {
      parts.push(draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
      parts.push(draw("text", { class: "scale", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, this.format(value)));
    }
    const ago = (end - begin) / 60;
    parts.push(draw("text", { class: "scale", x: LEFT, y: HEIGHT - 4 }, `${ago} min ago`));
    parts.push(draw("text", { class: "scale", x: width - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, "now"));
    this.series.forEach(({ key }, i) => parts.push(...this.#lines(key, i, y)));
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.#svg.replaceChildren(...parts);
    this.#svg.setAttribute("aria-label", this.#inWords());
    this.#showCursor();
  }

  // Paths between gaps, and a dot for a point that has no neighbours.
  #lines(key, i, y) {
    const runs = [[]];
    for (const point of this.#points) {
      if (Number.isFinite(point[key])) runs.at(-1).push(`${this.#x(point.time).toFixed(1)} ${y(point[key]).toFixed(1)}`);
      else if (runs.at(-1).length > 0) runs.push([]);
    }
    return runs.filter((run) => run.length > 0).map((run) => {
      if (run.length > 1) return draw("path", { class: `line line-${i}`, d: `M${run.join("L")}` });
      const [cx, cy] = run[0].split(" ");
      return draw("circle", { class: `line-${i}`, cx, cy, r: 2 });
    });
  }

  #inWords() {
    const parts = this.series.map(({ key, name }) => {
      const figures = figuresOf(this.#points, key);
      if (figures === null) return `${name}: nothing yet`;
      const now = figures.now === null ? "nothing" : this.format(figures.now);
      return `${name}: now ${now}, least ${this.format(figures.least)}, most ${this.format(figures.most)}`;
    });
    return `${this.title}. ${parts.join("; ")}.`;
  }

  #pointAt(x) {
    let nearest = null;
    for (const point of this.#points) {
      const distance = Math.abs(this.#x(point.time) - x);
      if (nearest === null || distance < nearest.distance) nearest = { distance, time: point.time };
    }
    this.#setCursor(nearest?.time ?? null);
  }

  #step(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.#setCursor(null);
    if (!step || this.#points.length === 0) return;
    event.preventDefault();
    const times = this.#points.map(({ time }) => time);
    const at = this.#cursor === null ? times.length : times.findIndex((time) => time >= this.#cursor);
    this.#setCursor(times[Math.min(times.length - 1, Math.max(0, at + step))]);
  }

  #setCursor(time) {
    this.#cursor = time;
    this.#showCursor();
  }

  #showCursor() {
    this.#svg.querySelector(".cursor")?.remove();
    const point = this.#points.find(({ time }) => time === this.#cursor);
    if (!point) {
      this.#readout.textContent = "";
      return;
    }
    const x = this.#x(point.time);
    this.#svg.append(draw("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
    const values = this.series.map(({ key, name }) => {
      const value = Number.isFinite(point[key]) ? this.format(point[key]) : "–";
      return this.series.length > 1 ? `${name} ${value}` : value;
    });
    const ago = Math.round(this.#points.at(-1).time - point.time);
    this.#readout.textContent = `${values.join(", ")}, ${ago} s ago`;
  }
}
