// JSON that C gives: the parameters of a request never change its prompt, and what is wrong is refused.
//
// A first byte says what it is: an engine's configuration, or the parameters of a request of that kind.
#include <cstdlib>
#include <string>

#include "c_api/arguments.h"
#include "http_api/request_body.h"
#include "quire/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const quire::HttpApiConfig config = [] {
    quire::HttpApiConfig made;
    made.served_model_names = {"a"};
    return made;
  }();
  if (size == 0) return 0;
  const std::string json(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int32_t ids[] = {1, 2};
  quire_submission submission{};
  submission.struct_size = sizeof submission;
  submission.params_json = json.c_str();
  try {
    switch (data[0] % 5) {
      case 0: {
        const quire_engine_options options{sizeof options, "directory", json.c_str()};
        if (quire::c_api::engine_settings(options).engine.model != "directory") std::abort();
        return 0;
      }
      case 1:
        submission.text = "a\"}";
        submission.text_size = 3;
        break;
      case 2:
        submission.token_ids = ids;
        submission.num_token_ids = 2;
        break;
      case 3: submission.messages_json = R"([{"role": "user", "content": "a"}])"; break;
      case 4:
        submission.messages_json = json.c_str();
        submission.params_json = nullptr;
        break;
    }
    const quire::c_api::RequestBody body = quire::c_api::request_body(submission);
    const quire::HttpBody read = quire::read_body(body.route, body.text, config);
    if (read.requests.size() != 1) std::abort();
    if (submission.text != nullptr && read.requests[0].prompt != "a\"}") std::abort();
    if (submission.token_ids != nullptr && read.requests[0].prompt_token_ids.size() != 2) std::abort();
  } catch (const quire::InvalidArgument&) {
  }
  return 0;
}
