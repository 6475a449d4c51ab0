#include "parsers/json_call.h"

#include <utility>

#include "formats/json.h"

namespace quire::parsers {
namespace {

using Event = JsonScanner::Event;

bool is_call_member(std::string_view key) {
  return key == "name" || key == "arguments" || key == "parameters" || key == "type" || key == "id";
}

bool is_arguments(std::string_view key) { return key == "arguments" || key == "parameters"; }

// The text of a string, as it stands between its quotes; empty when it is none.
std::string decode_string(std::string_view written) {
  const Json text = try_parse_json('"' + std::string(written) + '"');
  return text.is_string() ? text.get<std::string>() : std::string();
}

void pass_on(char byte, bool in_string, ChatOutput& out) {
  if (in_string && static_cast<unsigned char>(byte) < 0x20) {
    out.string_argument(byte);
  } else {
    out.arguments(byte);
  }
}

}  // namespace

Progress ArgumentsReader::put(char byte, ChatOutput& out) {
  const bool was_in_string = scanner_.in_string();
  if (scanner_.put(byte) == Event::kBad) return Progress::kBad;
  pass_on(byte, was_in_string, out);
  return scanner_.done() ? Progress::kDone : Progress::kMore;
}

void CallObjectReader::begin(ChatOutput& out) {
  out.begin_call(std::move(name_), std::move(id_));
  begun_ = true;
}

Progress CallObjectReader::put(char byte, ChatOutput& out) {
  if (!begun_ && held_.size() >= kMaxHeldBytes) return Progress::kBad;
  const bool was_in_string = scanner_.in_string();
  const bool is_other_value = scanner_.depth() == 1 && scanner_.expects_value() && !is_space(byte) &&
                              ((is_arguments(key_) && byte != '{' && (byte != '"' || name_.empty())) ||
                               (key_ == "name" && byte != '"'));
  const Event event = scanner_.put(byte);
  if (event == Event::kBad) return Progress::kBad;
  if (reading_arguments_) {
    pass_on(byte, was_in_string, out);
    reading_arguments_ = scanner_.depth() > 1;
    return Progress::kMore;
  }
  if (decoder_) return on_string_arguments(byte, event, out);
  if (begun_) return scanner_.done() ? Progress::kDone : Progress::kMore;
  const bool is_call = !is_other_value && !(scanner_.depth() == 1 && !on_string(byte, was_in_string));
  if (!is_call) {
    held_ += byte;
    return Progress::kOther;
  }
  if (scanner_.in_string() && !was_in_string && scanner_.depth() == 1 && !scanner_.in_key() &&
      is_arguments(key_)) {
    held_ += byte;
    decoder_.emplace();
    return Progress::kMore;
  }
  on_head(event, byte, out);
  return scanner_.done() && !begun_ ? Progress::kOther : Progress::kMore;
}

Progress CallObjectReader::on_string_arguments(char byte, Event event, ChatOutput& out) {
  if (!begun_) held_ += byte;
  if (event == Event::kStringEnd) {
    decoder_.reset();
    if (!begun_) return Progress::kOther;
    return decoded_->is_done() ? Progress::kMore : Progress::kBad;
  }
  std::string decoded;
  decoder_->put(byte, decoded);
  for (const char each : decoded) {
    if (is_space(each) && (!begun_ || decoded_->is_done())) continue;
    if (!begun_ && each != '{') return Progress::kOther;
    if (!begun_) {
      begin(out);
      decoded_.emplace();
    }
    if (decoded_->put(each, out) == Progress::kBad) return Progress::kBad;
  }
  return Progress::kMore;
}

Progress CallObjectReader::skip(char byte) {
  if (scanner_.put(byte) == Event::kBad) return Progress::kBad;
  return scanner_.done() ? Progress::kDone : Progress::kMore;
}

// Reads keys and the name, which are strings of the outer object. False: not those of a call.
bool CallObjectReader::on_string(char byte, bool was_in_string) {
  if (!was_in_string) {
    if (scanner_.in_string()) string_.clear();
    return true;
  }
  const bool is_key = scanner_.in_key();
  if (!is_key && key_ != "name") return true;
  if (scanner_.in_string()) {
    string_ += byte;
    return string_.size() <= 6 * kMaxNameBytes;  // a character may be written \u0041
  }
  if (is_key) {
    key_ = string_;
    return !strict_ || is_call_member(key_);
  }
  if (!name_.empty()) return true;
  name_ = decode_string(string_);
  return !name_.empty() && name_.size() <= kMaxNameBytes;
}

void CallObjectReader::on_head(Event event, char byte, ChatOutput& out) {
  const bool in_arguments = is_arguments(key_) && arguments_end_ == 0;
  if (event == Event::kOpen && scanner_.depth() == 2 && in_arguments) {
    if (!name_.empty()) {
      begin(out);
      out.arguments(byte);
      reading_arguments_ = true;
      return;
    }
    arguments_begin_ = held_.size();
  }
  held_ += byte;
  if (event == Event::kClose && scanner_.depth() == 1 && in_arguments) arguments_end_ = held_.size();
  if (arguments_end_ > 0 && !name_.empty()) {
    begin(out);
    ArgumentsReader arguments;
    for (size_t i = arguments_begin_; i < arguments_end_; ++i) arguments.put(held_[i], out);
  }
}

}  // namespace quire::parsers
