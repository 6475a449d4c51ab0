// Bodies of the HTTP API: whatever is sent is read or refused by name. What is said of it is JSON.
#include <cstdlib>
#include <string>

#include "formats/json.h"
#include "http_api/request_body.h"
#include "quire/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const quire::HttpApiConfig config = [] {
    quire::HttpApiConfig made;
    made.served_model_names = {"a", "b"};
    return made;
  }();
  if (size == 0) return 0;
  const auto route = static_cast<quire::HttpRoute>(data[0] % 5);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const quire::HttpBody body = quire::read_body(route, text, config);
    if (body.requests.empty()) std::abort();
    for (const quire::EngineRequest& request : body.requests) {
      const bool has_prompt = !request.prompt.empty() || !request.prompt_token_ids.empty();
      if (has_prompt != (route == quire::HttpRoute::kCompletions)) std::abort();
    }
  } catch (const quire::InvalidArgument& error) {
    const std::string said =
        quire::http_error_body({.status = 400, .message = error.what(), .param = "", .code = ""}, route);
    if (quire::try_parse_json(said).is_discarded()) std::abort();
  }
  return 0;
}
