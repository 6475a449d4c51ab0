// What the engine said at each poll, and what follows from two of them. Counters only mean something by how they grow.

const COUNTERS = {
  generation: "quire:generation_tokens_total",
  prompt: "quire:prompt_tokens_total",
  queries: "quire:prefix_cache_queries_total",
  hits: "quire:prefix_cache_hits_total",
  preemptions: "quire:num_preemptions_total",
};
const GAUGES = {
  running: "quire:num_requests_running",
  waiting: "quire:num_requests_waiting",
  kvUsage: "quire:kv_cache_usage_perc",
  blocks: "quire:num_kv_cache_blocks",
  blocksUsed: "quire:num_kv_cache_blocks_used",
};
const HISTOGRAMS = {
  firstToken: "quire:time_to_first_token_seconds",
  tokenGap: "quire:inter_token_latency_seconds",
  stepTokens: "quire:iteration_tokens_total",
};
export const NAMES = [...Object.values(COUNTERS), ...Object.values(GAUGES)];
export const HISTOGRAM_NAMES = Object.values(HISTOGRAMS);

// Polls further apart say nothing of the time between: the page was hidden, or the server away.
const LONGEST_STEP = 12;
const HIT_RATE_WINDOW = 30;
const KEPT = 900;

const ratio = (part, whole) => (whole > 0 ? part / whole : null);
const isRestart = (before, after) =>
  Object.values(COUNTERS).some((name) => (after[name] ?? 0) < (before[name] ?? 0));

// Times are in seconds, on any clock that does not jump.
export class History {
  points = []; // of the last KEPT seconds; what could not be known is null
  #samples = []; // { time, values } since the last gap
  #values = null; // of the last poll that was answered
  restarts = 0;

  // A poll without an answer, or none for a while: lines break here.
  addGap(time) {
    if (this.#samples.length === 0) return;
    this.#samples = [];
    this.points.push({ time });
  }

  add(time, values) {
    const hasRestarted = this.#values !== null && isRestart(this.#values, values);
    if (hasRestarted) this.restarts += 1;
    if (hasRestarted || time - this.#samples.at(-1)?.time > LONGEST_STEP) this.addGap(time);
    const before = this.#samples.at(-1);
    this.#values = values;
    this.#samples.push({ time, values });
    while (this.#samples[0].time < time - HIT_RATE_WINDOW) this.#samples.shift();
    this.points.push(this.#point(time, values, before));
    while (this.points[0].time < time - KEPT) this.points.shift();
  }

  #point(time, values, before) {
    const point = { time };
    for (const [key, name] of Object.entries(GAUGES)) point[key] = values[name] ?? null;
    const queries = values[COUNTERS.queries] ?? 0;
    point.hitRateOfAll = ratio(values[COUNTERS.hits] ?? 0, queries);
    point.allPreemptions = values[COUNTERS.preemptions] ?? null;
    if (!before) return point;
    const seconds = time - before.time;
    const growth = (key, from = before) => (values[COUNTERS[key]] ?? 0) - (from.values[COUNTERS[key]] ?? 0);
    for (const key of ["generation", "prompt", "preemptions"]) point[key] = growth(key) / seconds;
    const oldest = this.#samples[0];
    point.hitRate = ratio(growth("hits", oldest), growth("queries", oldest));
    for (const key of Object.keys(HISTOGRAMS)) {
      const [now, then] = [values[HISTOGRAMS[key]], before.values[HISTOGRAMS[key]]];
      point[key] = ratio(now.sum - then.sum, now.count - then.count);
    }
    point.tokenGap95 = boundOf(values[HISTOGRAMS.tokenGap], before.values[HISTOGRAMS.tokenGap], 0.95);
    return point;
  }
}

// The bucket's bound that this part of what came between two polls does not exceed; null when nothing came.
export function boundOf(now, then, part) {
  const wanted = part * (now.count - then.count);
  if (wanted <= 0) return null;
  for (const [bound, count] of now.buckets) {
    const before = then.buckets.find(([other]) => other === bound)?.[1] ?? 0;
    if (count - before >= wanted) return bound;
  }
  return Infinity;
}
