// The pieces of Prometheus's text exposition format 0.0.4.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/metrics.h"

namespace quire {

// "5", "0.25", "+Inf", "NaN".
void append_number(std::string& text, double value);

// `a="x",b="y"`, with what the format wants escaped; bytes that are not UTF-8 are written \xff. As many
// values as names.
std::string label_text(std::span<const std::string> names, std::span<const std::string> values);

// # HELP and # TYPE.
void append_header(std::string& text, std::string_view name, std::string_view help, MetricKind kind);

// One line. `labels` as label_text makes them, perhaps none.
void append_sample(std::string& text, std::string_view name, std::string_view labels, double value);

// All lines of one histogram. `counts` has one more than `buckets`: what is above the last bound; each is of
// its bucket alone.
void append_histogram(std::string& text, std::string_view name, std::string_view labels,
                      std::span<const double> buckets, std::span<const double> counts, double sum);

}  // namespace quire
