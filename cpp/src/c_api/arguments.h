// What C gives, as what the engine takes.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "quire/engine_config.h"
#include "quire/error.h"
#include "quire/http_api.h"
#include "quire/lora.h"
#include "quire/quire.h"
#include "util/str.h"

namespace quire::c_api {

// Sizes of the structs of the first version: no caller has shorter ones.
inline constexpr size_t kFirstOptionsSize = 24, kFirstEventSize = 40, kFirstSubmissionSize = 72,
                        kFirstStatsSize = 88, kFirstLoraSize = 32;
// Longer ones are none: their size was not set.
inline constexpr size_t kMaxStructSize = 4096;

// The size that the caller's struct says it has. Throws InvalidArgument.
template <typename T>
size_t struct_size(const T* given, size_t first_size, const char* name) {
  if (given == nullptr) throw InvalidArgument(str(name, " is null; give the address of one"));
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < first_size || size > kMaxStructSize) {
    throw InvalidArgument(
        str(name, "->struct_size must be sizeof of the struct, ", sizeof(T), " in this version, got ", size));
  }
  return size;
}

// A struct with zeros where the caller's ends. Throws InvalidArgument where the caller's goes on with more
// than zeros.
template <typename T>
T read_struct(const T* given, size_t first_size, const char* name) {
  const size_t size = struct_size(given, first_size, name);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof(T) && std::any_of(bytes + sizeof(T), bytes + size, [](auto byte) { return byte != 0; })) {
    throw InvalidArgument(str(name, " has fields that are not zero and that version ", QUIRE_ABI_VERSION,
                              " of the ABI does not know; see quire_abi_version()"));
  }
  T read{};
  std::memcpy(&read, given, std::min(size, sizeof(T)));
  return read;
}

// As much of it as the caller's struct, whose size was looked at, has room for; zeros behind.
template <typename T>
void write_struct(const T& value, T* out) {
  size_t size = 0;
  std::memcpy(&size, out, sizeof size);
  std::memset(out, 0, size);
  std::memcpy(out, &value, std::min(size, sizeof(T)));
  std::memcpy(out, &size, sizeof size);
}

struct EngineSettings {
  EngineConfig engine;
  std::string reasoning_parser, tool_parser, chat_template, served_model_name;
};
// Throws InvalidArgument.
EngineSettings engine_settings(const quire_engine_options& options);

// Throws InvalidArgument for what is missing or no UTF-8; the rest is the engine's to check.
LoraRequest lora_request(const quire_lora& lora);
std::string lora_name(const char* name);
// The text of quire_list_loras.
std::string list_text(const std::vector<LoraInfo>& loras);

struct RequestBody {
  HttpRoute route = HttpRoute::kCompletions;
  std::string text;
};
// The body of the request that a submission makes. Its parameters are looked at as far as that they are an
// object without a prompt of their own. Throws InvalidArgument.
RequestBody request_body(const quire_submission& submission);

// A piece of an answer.
struct Event {
  std::string json;
  quire_status status = QUIRE_OK;
  bool finished = false;
};
// What HttpExchange::take gave: a body, or server-sent events.
std::vector<Event> split_events(std::string bytes, bool is_stream);

}  // namespace quire::c_api
