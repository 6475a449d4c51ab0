// Settings by name, for doors that receive them as text: Triton's parameters, an HTTP body, a command line.
//
// A value is JSON. Where the field is no string, a JSON string is read as the JSON it contains, so "0.5" and
// 0.5, "true" and true are the same; null leaves the default. Every complaint is an InvalidArgument that
// names the field, the value and what would do. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "quire/chat.h"
#include "quire/engine.h"
#include "quire/engine_config.h"

namespace quire {

// Fields of kSamplingParamsFields and kEngineRequestFields that clients set, by their names. `stop` may be
// one string or an array, `logprobs` a boolean (true is 1, false is none). vLLM's fields that
// Quire does not have (best_of, use_beam_search, ...) are accepted with the value that changes nothing.
QUIRE_API void set_field(EngineRequest& request, const std::string& name, const std::string& json);
// The members of a JSON object; `where` begins the complaints about the text itself.
QUIRE_API void set_fields(EngineRequest& request, const std::string& json, std::string_view where);
// Fields of kChatRequestFields too; members called `except` are passed over.
QUIRE_API void set_field(EngineRequest& request, ChatRequest& chat, const std::string& name,
                         const std::string& json);
QUIRE_API void set_fields(EngineRequest& request, ChatRequest& chat, const std::string& json,
                          std::string_view where, std::string_view except = {});
// Names that set_field knows, in the order of the structs.
QUIRE_API std::vector<std::string> request_field_names();

// Fields of kEngineConfigFields by their names; `text` is a JSON value, or a string without its quotes.
QUIRE_API void set_field(EngineConfig& config, const std::string& name, const std::string& text);
QUIRE_API std::vector<std::string> engine_config_field_names();

}  // namespace quire
