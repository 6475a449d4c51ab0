#include "simulator/calibration.h"

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "formats/json.h"
#include "quire/error.h"
#include "simulator/json_lines.h"
#include "util/str.h"

namespace quire {
namespace {

constexpr size_t kNumTerms = 4;  // step, token, request, context token
using Terms = std::array<double, kNumTerms>;

Terms terms_of(const StepLoad& load) {
  return {1.0, static_cast<double>(load.num_tokens), static_cast<double>(load.num_reqs),
          static_cast<double>(load.context_tokens)};
}

// Solves the normal equations for the terms in `used`; the others stay 0. Nothing when they are singular.
std::optional<Terms> solve(std::array<Terms, kNumTerms> a, Terms b, unsigned used) {
  for (size_t i = 0; i < kNumTerms; ++i) {
    if (used >> i & 1) continue;
    a[i].fill(0.0);
    for (Terms& row : a) row[i] = 0.0;
    a[i][i] = 1.0;
    b[i] = 0.0;
  }
  for (size_t column = 0; column < kNumTerms; ++column) {
    size_t pivot = column;
    for (size_t row = column; row < kNumTerms; ++row) {
      if (std::abs(a[row][column]) > std::abs(a[pivot][column])) pivot = row;
    }
    if (std::abs(a[pivot][column]) < 1e-12) return std::nullopt;
    std::swap(a[pivot], a[column]);
    std::swap(b[pivot], b[column]);
    for (size_t row = 0; row < kNumTerms; ++row) {
      if (row == column) continue;
      const double factor = a[row][column] / a[column][column];
      for (size_t i = column; i < kNumTerms; ++i) a[row][i] -= factor * a[column][i];
      b[row] -= factor * b[column];
    }
  }
  for (size_t i = 0; i < kNumTerms; ++i) b[i] /= a[i][i];
  return b;
}

}  // namespace

// Four terms have sixteen subsets: the best fit without a negative coefficient is the best of theirs.
Calibration fit_cost_model(const std::vector<MeasuredStep>& steps) {
  if (steps.empty()) throw InvalidArgument("the calibration has no measured steps");
  Terms scale{};  // columns of about one size: the equations are then well conditioned
  for (const MeasuredStep& step : steps) {
    const Terms terms = terms_of(step.load);
    for (size_t i = 0; i < kNumTerms; ++i)
      scale[i] += terms[i] / step.seconds / static_cast<double>(steps.size());
  }
  std::vector<Terms> rows;  // relative to the step's time, so the right-hand side is 1
  for (const MeasuredStep& step : steps) {
    Terms row = terms_of(step.load);
    for (size_t i = 0; i < kNumTerms; ++i) row[i] = scale[i] > 0 ? row[i] / step.seconds / scale[i] : 0.0;
    rows.push_back(row);
  }
  std::array<Terms, kNumTerms> a{};
  Terms b{};
  for (const Terms& row : rows) {
    for (size_t i = 0; i < kNumTerms; ++i) {
      for (size_t j = 0; j < kNumTerms; ++j) a[i][j] += row[i] * row[j] / static_cast<double>(rows.size());
      b[i] += row[i] / static_cast<double>(rows.size());
    }
  }
  Terms best{};
  double best_error = std::numeric_limits<double>::infinity();
  for (unsigned used = 1; used < 1U << kNumTerms; ++used) {
    const std::optional<Terms> x = solve(a, b, used);
    if (!x || (*x)[0] < 0 || (*x)[1] < 0 || (*x)[2] < 0 || (*x)[3] < 0) continue;
    double error = 0.0;
    for (const Terms& row : rows) {
      double sum = -1.0;
      for (size_t i = 0; i < kNumTerms; ++i) sum += row[i] * (*x)[i];
      error += sum * sum;
    }
    // More terms must earn their place: a fit that is better by rounding alone is not better.
    if (error < best_error * (1 - 1e-9) - 1e-18) {
      best_error = error;
      best = *x;
    }
  }
  for (size_t i = 0; i < kNumTerms; ++i) best[i] = scale[i] > 0 ? best[i] / scale[i] : 0.0;
  Calibration calibration;
  calibration.cost_model = {best[0], best[1], best[2], best[3], 0.0};
  for (const MeasuredStep& step : steps) {
    calibration.mean_relative_error +=
        std::abs(calibration.cost_model.seconds(step.load) / step.seconds - 1) /
        static_cast<double>(steps.size());
  }
  return calibration;
}

Calibration parse_calibration(const std::string& text, const std::string& name) {
  std::vector<MeasuredStep> steps;
  std::string source;
  for_each_json_line(text, name, [&](const JsonNode& node) {
    if (const auto machine = node.find("machine")) {
      source = machine->string();
      for (const char* key : {"model", "date"}) {
        if (const auto more = node.find(key)) source += ", " + more->string();
      }
      return;
    }
    node.allow_only({"num_tokens", "num_reqs", "context_tokens", "seconds"});
    constexpr int64_t kMax = int64_t{1} << 40;
    MeasuredStep& step = steps.emplace_back();
    step.load = {node.at("num_tokens").integer(1, kMax), node.at("num_reqs").integer(1, kMax),
                 node.at("context_tokens").integer(0, kMax)};
    const JsonNode seconds = node.at("seconds");
    if (!seconds.json().is_number() || !(seconds.json().get<double>() > 0)) seconds.fail("must be above 0");
    step.seconds = seconds.json().get<double>();
  });
  if (steps.empty()) throw InvalidArgument(str(name, ": has no measured steps"));
  Calibration calibration = fit_cost_model(steps);
  calibration.source = source.empty() ? name : source;
  return calibration;
}

Calibration load_calibration(const std::string& path) {
  return parse_calibration(read_text_file(path), path);
}

}  // namespace quire
