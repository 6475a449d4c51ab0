#include "observability/prometheus_text.h"

#include <charconv>
#include <cmath>

#include "quire/utf8.h"

namespace quire {
namespace {

const char* kind_name(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter: return "counter";
    case MetricKind::kGauge: return "gauge";
    case MetricKind::kHistogram: break;
  }
  return "histogram";
}

template <class... Format>
void append_chars(std::string& text, double value, Format... format) {
  char digits[32];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, value, format...).ptr);
}

void append_escaped(std::string& text, std::string_view raw, bool quotes) {
  for (const char c : raw) {
    if (c == '\\') {
      text += "\\\\";
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '"' && quotes) {
      text += "\\\"";
    } else {
      text += c;
    }
  }
}

std::string valid_utf8(std::string_view raw) {
  std::string text;
  for (size_t bad = 0; (bad = find_invalid_utf8(raw)) != std::string_view::npos; raw.remove_prefix(bad + 1)) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(raw[bad]);
    text += raw.substr(0, bad);
    text += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
  }
  return text += raw;
}

// A bound as prometheus_client writes it: recorded queries compare it as text.
void append_bound(std::string& text, double bound) {
  if (bound >= 1e6) {
    append_chars(text, bound, std::chars_format::scientific);
  } else {
    append_chars(text, bound, std::chars_format::fixed);
    if (bound == std::trunc(bound)) text += ".0";
  }
}

}  // namespace

void append_number(std::string& text, double value) {
  if (std::isnan(value)) {
    text += "NaN";
  } else if (std::isinf(value)) {
    text += value > 0 ? "+Inf" : "-Inf";
  } else if (value == std::trunc(value) && std::abs(value) < 1e15) {
    text += std::to_string(static_cast<int64_t>(value));
  } else {
    append_chars(text, value);
  }
}

std::string label_text(std::span<const std::string> names, std::span<const std::string> values) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += ',';
    text += names[i];
    text += "=\"";
    append_escaped(text, valid_utf8(values[i]), /*quotes=*/true);
    text += '"';
  }
  return text;
}

void append_header(std::string& text, std::string_view name, std::string_view help, MetricKind kind) {
  text.append("# HELP ").append(name).append(" ");
  append_escaped(text, valid_utf8(help), /*quotes=*/false);
  text.append("\n# TYPE ").append(name).append(" ").append(kind_name(kind)).append("\n");
}

void append_sample(std::string& text, std::string_view name, std::string_view labels, double value) {
  text += name;
  if (!labels.empty()) text.append("{").append(labels).append("}");
  text += ' ';
  append_number(text, value);
  text += '\n';
}

void append_histogram(std::string& text, std::string_view name, std::string_view labels,
                      std::span<const double> buckets, std::span<const double> counts, double sum) {
  double count = 0.0;
  for (size_t i = 0; i < counts.size(); ++i) {
    count += counts[i];
    text.append(name).append("_bucket{").append(labels).append(labels.empty() ? "le=\"" : ",le=\"");
    if (i < buckets.size()) {
      append_bound(text, buckets[i]);
    } else {
      text += "+Inf";
    }
    text += "\"} ";
    append_number(text, count);
    text += '\n';
  }
  std::string of(name);
  append_sample(text, of + "_sum", labels, sum);
  append_sample(text, of + "_count", labels, count);
}

}  // namespace quire
