// What every backend is measured against: the plainest correct loops, summed in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "util/sanitizer_ranges.h"

namespace quire::reference {

using Matrix = std::vector<double>;  // row-major

// The two loops that references spend their time in. Nothing is told of their ranges: a test computes what it
// expects from copies of its own, which no other thread knows.
QUIRE_RANGES_TOLD inline double dot(const double* a, const double* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
QUIRE_RANGES_TOLD inline void add_scaled(double* out, double scale, const double* x, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] += scale * x[i];
}

inline Matrix rms_norm(const Matrix& x, const Matrix& weight, double eps, double weight_offset = 0) {
  const size_t n = weight.size();
  Matrix out(x.size());
  for (size_t row = 0; row < x.size(); row += n) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += x[row + i] * x[row + i];
    const double scale = 1 / std::sqrt(sum / static_cast<double>(n) + eps);
    for (size_t i = 0; i < n; ++i) out[row + i] = x[row + i] * scale * (weight_offset + weight[i]);
  }
  return out;
}

// bias may be empty.
inline Matrix layer_norm(const Matrix& x, const Matrix& weight, const Matrix& bias, double eps) {
  const size_t n = weight.size();
  Matrix out(x.size());
  for (size_t row = 0; row < x.size(); row += n) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < n; ++i) mean += x[row + i] / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i)
      variance += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i)
      out[row + i] =
          (x[row + i] - mean) / std::sqrt(variance + eps) * weight[i] + (bias.empty() ? 0 : bias[i]);
  }
  return out;
}

// One head of one token, in place.
inline void rotate(double* head, const float* cos_sin, size_t rotary_dim, bool interleaved = false) {
  const size_t half = rotary_dim / 2;
  for (size_t i = 0; i < half; ++i) {
    double& first = head[interleaved ? 2 * i : i];
    double& second = head[interleaved ? 2 * i + 1 : i + half];
    const double a = first, b = second, c = cos_sin[i], s = cos_sin[half + i];
    first = a * c - b * s;
    second = b * c + a * s;
  }
}

inline double silu(double x) { return x / (1 + std::exp(-x)); }
inline double gelu(double x) { return x * std::erfc(-x / std::sqrt(2.0)) / 2; }
inline double gelu_tanh(double x) {
  return x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))) / 2;
}

// [m, k] x [n, k] -> [m, n]; bias may be empty.
inline Matrix linear(const Matrix& x, const Matrix& weight, const std::vector<float>& bias, size_t k) {
  const size_t m = x.size() / k, n = weight.size() / k;
  Matrix out(m * n);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      out[i * n + j] = (bias.empty() ? 0 : bias[j]) + dot(&x[i * k], &weight[j * k], k);
    }
  }
  return out;
}

struct AttentionOptions {
  double scale = 1;
  double soft_cap = 0;
  int window = 0;
  double alibi_slope = 0;
  const float* sink = nullptr;
};

// One query head at `position` over keys and values [positions, head_size] of its KV head.
inline std::vector<double> attend(const double* query, const Matrix& keys, const Matrix& values,
                                  size_t head_size, int position, const AttentionOptions& options) {
  const int first = options.window > 0 ? std::max(0, position - options.window + 1) : 0;
  std::vector<double> scores;
  double highest = options.sink != nullptr ? *options.sink : -std::numeric_limits<double>::infinity();
  for (int t = first; t <= position; ++t) {
    double score = options.scale * dot(query, &keys[static_cast<size_t>(t) * head_size], head_size);
    if (options.soft_cap > 0) score = options.soft_cap * std::tanh(score / options.soft_cap);
    score += options.alibi_slope * (t - position);
    scores.push_back(score);
    highest = std::max(highest, score);
  }
  double sum = options.sink != nullptr ? std::exp(*options.sink - highest) : 0;
  std::vector<double> out(head_size);
  for (int t = first; t <= position; ++t) {
    const double p = std::exp(scores[static_cast<size_t>(t - first)] - highest);
    sum += p;
    add_scaled(out.data(), p, &values[static_cast<size_t>(t) * head_size], head_size);
  }
  for (double& x : out) x /= sum;
  return out;
}

// The probabilities that `sample` draws from: min-p, then top-k, then top-p of what is left.
inline std::vector<double> sampling_probabilities(const std::vector<float>& logits, double temperature,
                                                  int top_k, double top_p, double min_p) {
  const size_t n = logits.size();
  std::vector<size_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(n);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    if (top_k > 0 && i >= static_cast<size_t>(top_k)) break;
    const double weight = std::exp((static_cast<double>(logits[order[i]]) - logits[order[0]]) / temperature);
    if (weight < min_p) break;
    p[order[i]] = weight;
    sum += weight;
  }
  double before = 0, kept = 0;
  for (const size_t i : order) {
    if (before >= top_p * sum && top_p < 1) p[i] = 0;
    before += p[i];
    kept += p[i];
  }
  for (double& x : p) x /= kept;
  return p;
}

}  // namespace quire::reference
