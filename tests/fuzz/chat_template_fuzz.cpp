// Any bytes as a template; what loads is rendered with messages and tools. After a zero byte, the rest of the
// input is the messages.
#include <cstdint>
#include <string_view>

#include "chat/chat_template.h"
#include "quire/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  std::string_view messages =
      R"([{"role": "system", "content": "s\n"}, {"role": "user", "content": [{"type": "text", "text": "é"}]},
          {"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5}}}]}])";
  if (zero != input.npos) messages = input.substr(zero + 1);
  try {
    const auto chat_template =
        quire::chat::ChatTemplate::from_string(input.substr(0, zero), {{"bos_token", "<s>"}});
    quire::chat::ChatTemplate::Options options;
    options.tools_json = R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])";
    chat_template->render(messages, options);
  } catch (const quire::Error&) {
  }
  return 0;
}
