#include "chat/python_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "chat/budget.h"
#include "chat/python_strings.h"
#include "formats/json.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire::chat {
namespace {

using Kind = Value::Kind;

// The shortest digits that read back as the same float, laid out as Python does.
std::string float_text(double value) {
  spend(10);
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string text(buffer, result.ptr);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  std::string digits = text.substr(0, e);
  const std::string sign = digits[0] == '-' ? "-" : "";
  digits.erase(0, sign.size());
  std::erase(digits, '.');
  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    if (num_digits > 1) digits.insert(1, 1, '.');
    std::snprintf(buffer, sizeof buffer, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return sign + digits + buffer;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (num_digits <= exponent + 1) {
    return sign + digits + std::string(static_cast<size_t>(exponent + 1 - num_digits), '0') + ".0";
  }
  digits.insert(static_cast<size_t>(exponent + 1), 1, '.');
  return sign + digits;
}

class Printer {
 public:
  std::string take() { return std::move(out_); }

  void print(const Value& value) {
    spend(2);
    switch (value.kind()) {
      case Kind::kUndefined: put("Undefined"); break;
      case Kind::kNone: put("None"); break;
      case Kind::kBool: put(value.as_bool() ? "True" : "False"); break;
      case Kind::kInt: put(std::to_string(value.as_int())); break;
      case Kind::kFloat: put(float_text(value.as_double())); break;
      case Kind::kString: put(quote(value.as_string())); break;
      case Kind::kList: print_items(value, "[", "]"); break;
      case Kind::kTuple: print_items(value, "(", value.as_sequence().items.size() == 1 ? ",)" : ")"); break;
      case Kind::kView: print_items(value, value.as_sequence().name + "([", "])"); break;
      case Kind::kRange:
        if (value.as_sequence().name.empty()) fail("printing a range is not supported");
        put("range(" + value.as_sequence().name + ")");
        break;
      case Kind::kDict: {
        put("{");
        std::string_view separator;
        for (const auto& [key, item] : value.as_dict().items) {
          put(separator);
          print(key);
          put(": ");
          print(item);
          separator = ", ";
        }
        put("}");
        break;
      }
      default: fail(str("a ", value.type_name(), " cannot be written as text"));
    }
  }

 private:
  void put(std::string_view text) {
    check_string_size(out_.size() + text.size());
    spend_copy(text.size());
    out_ += text;
  }

  void print_items(const Value& value, std::string_view open, std::string_view close) {
    put(open);
    std::string_view separator;
    for (const Value& item : value.as_sequence().items) {
      put(separator);
      print(item);
      separator = ", ";
    }
    put(close);
  }

  std::string out_;
};

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  std::string take() { return std::move(out_); }

  void write(const Value& value, int level) {
    spend(2 + level / 4);
    switch (value.kind()) {
      case Kind::kNone: put("null"); break;
      case Kind::kBool: put(value.as_bool() ? "true" : "false"); break;
      case Kind::kInt: put(std::to_string(value.as_int())); break;
      case Kind::kFloat: put(number(value.as_double())); break;
      case Kind::kString: write_string(value.as_string()); break;
      case Kind::kList:
      case Kind::kTuple: write_list(value.as_sequence().items, level); break;
      case Kind::kDict: write_dict(value.as_dict(), level); break;
      default:
        throw InvalidArgument(
            str("chat_template: Object of type ", value.type_name(), " is not JSON serializable"));
    }
  }

 private:
  void put(std::string_view text) {
    check_string_size(out_.size() + text.size());
    spend_copy(text.size());
    out_ += text;
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_text(value);
  }

  void start_line(int level) {
    if (!style_.indented) return;
    put("\n");
    for (int i = 0; i < level; ++i) put(style_.indent);
  }

  void write_list(const Values& items, int level) {
    if (items.empty()) return put("[]");
    put("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) put(style_.item_separator);
      start_line(level + 1);
      write(items[i], level + 1);
    }
    start_line(level);
    put("]");
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.items.empty()) return put("{}");
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto* a, const auto* b) { return compare(a->first, b->first) < 0; });
    }
    put("{");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) put(style_.item_separator);
      start_line(level + 1);
      write_key(items[i]->first);
      put(style_.key_separator);
      write(items[i]->second, level + 1);
    }
    start_line(level);
    put("}");
  }

  void write_key(const Value& key) {
    if (key.is(Kind::kString)) return write_string(key.as_string());
    if (!key.is_number() && !key.is(Kind::kNone)) {
      fail(str("JSON keys must be strings, not ", key.type_name()));
    }
    put("\"");
    write(key, 0);
    put("\"");
  }

  void write_string(const std::string& text) {
    spend(static_cast<int64_t>(text.size() / 4));
    put("\"");
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      const char32_t c = decode_utf8(text, pos);
      switch (c) {
        case '"': put("\\\""); break;
        case '\\': put("\\\\"); break;
        case '\n': put("\\n"); break;
        case '\r': put("\\r"); break;
        case '\t': put("\\t"); break;
        case '\b': put("\\b"); break;
        case '\f': put("\\f"); break;
        default:
          if (c >= 0x20 && (c < 0x7F || !style_.ensure_ascii)) {
            put(std::string_view(text).substr(begin, pos - begin));
          } else if (c < 0x10000) {
            write_escape(c);
          } else {
            write_escape(0xD800 + ((c - 0x10000) >> 10));
            write_escape(0xDC00 + ((c - 0x10000) & 0x3FF));
          }
      }
    }
    put("\"");
  }

  void write_escape(char32_t unit) {
    spend(5);
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(unit & 0xFFFF));
    put(escape);
  }

  const JsonStyle& style_;
  std::string out_;
};

// Builds values while the text is read, so that objects keep their order.
class ValueBuilder final : public JsonHandler {
 public:
  explicit ValueBuilder(const std::string& where) : where_(where) {}

  Value take() { return std::move(result_); }

  void on_null() override { add(Value()); }
  void on_boolean(bool value) override { add(Value(value)); }
  void on_integer(int64_t value) override { add(Value(value)); }
  void on_float(double value) override { add(Value(value)); }
  void on_string(std::string value) override { add(Value(std::move(value))); }
  void on_key(std::string key) override { open_.back().key = Value(std::move(key)); }
  void on_object_start() override { open(true); }
  void on_array_start() override { open(false); }
  void on_object_end() override { close(Value::dict(std::move(open_.back().dict))); }
  void on_array_end() override { close(Value::list(std::move(open_.back().items))); }

 private:
  struct Container {
    bool is_dict = false;
    Dict dict;
    Values items;
    Value key;
  };

  void open(bool is_dict) {
    if (open_.size() >= kMaxDepth)
      throw InvalidArgument(str(where_, ": nested more than ", kMaxDepth, " deep"));
    open_.emplace_back().is_dict = is_dict;
  }

  void close(Value value) {
    open_.pop_back();
    add(std::move(value));
  }

  void add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (open_.back().is_dict) {
      open_.back().dict.set(open_.back().key, std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
  }

  const std::string& where_;
  std::vector<Container> open_;
  Value result_;
};

}  // namespace

std::string to_text(const Value& value) {
  if (value.is(Kind::kString)) {
    spend_copy(value.as_string().size());
    return value.as_string();
  }
  if (!value.is_defined()) return "";
  return to_representation(value);
}

std::string to_representation(const Value& value) {
  Printer printer;
  printer.print(value);
  return printer.take();
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return writer.take();
}

Value parse_json_value(std::string_view text, const std::string& where) {
  ValueBuilder builder(where);
  parse_json(text, where, builder);
  return builder.take();
}

}  // namespace quire::chat
