// Prometheus's text, as far as the page reads it: sums over the series of a family.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{((?:"(?:[^"\\]|\\.)*"|[^"}])*)\})?\s+(\S+)/;
const UPPER_BOUND = /(?:^|,)le="([^"]*)"/;

function number(text) {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}

// From names to values; for each name of `histograms` to { sum, count, buckets: [[upper bound, count], ...] }, which
// Prometheus counts up to each bound. What is not asked for is passed over: most lines are.
export function readExposition(text, names, histograms) {
  const wanted = new Set(names);
  const values = {};
  const parts = new Map();
  for (const name of histograms) {
    values[name] = { sum: 0, count: 0, buckets: [] };
    for (const part of ["sum", "count", "bucket"]) parts.set(`${name}_${part}`, [values[name], part]);
  }
  for (const line of text.split("\n")) {
    if (line === "" || line[0] === "#") continue;
    const [, name, labels = "", written] = LINE.exec(line) ?? [];
    if (wanted.has(name)) {
      values[name] = (values[name] ?? 0) + number(written);
    } else if (parts.has(name)) {
      const [histogram, part] = parts.get(name);
      if (part !== "bucket") histogram[part] += number(written);
      else addBucket(histogram.buckets, number(UPPER_BOUND.exec(labels)?.[1] ?? "+Inf"), number(written));
    }
  }
  return values;
}

function addBucket(buckets, bound, count) {
  const found = buckets.find(([known]) => known === bound);
  if (found) found[1] += count;
  else buckets.push([bound, count]);
}
