// Bytes as a request of Triton's, and what follows a 0xFF byte as sampling parameters and as multi_lora.json.
// Lines of text, so that mutations make sense: "i NAME DATATYPE DIMS BYTES" an input, "p NAME TYPE VALUE" a
// parameter, "o NAME" an output, "d" a decoupled model, "l" one whose adapters requests may change, "t
// NUMBER" a timeout.
#include <charconv>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>

#include "lora_files.h"
#include "quire/error.h"
#include "quire/fields.h"
#include "request_adapter.h"

namespace {

using namespace quire::triton;

std::string_view take_until(std::string_view& text, char end) {
  const size_t at = text.find(end);
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  return taken;
}

template <typename T>
T number(std::string_view text) {
  T value{};
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// "x" begins the bytes of one string whose length is right.
std::string tensor_bytes(std::string_view text) {
  if (text.empty() || text[0] != 'x') return std::string(text);
  text.remove_prefix(1);
  std::string bytes(sizeof(uint32_t), '\0');
  const auto size = static_cast<uint32_t>(text.size());
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes.append(text);
}

RequestParameter read_parameter(std::string_view line) {
  RequestParameter parameter;
  parameter.name = take_until(line, ' ');
  const std::string_view type = take_until(line, ' ');
  if (type == "i")
    parameter.value = number<int64_t>(line);
  else if (type == "d")
    parameter.value = number<double>(line);
  else if (type == "b")
    parameter.value = line == "1";
  else
    parameter.value = std::string(line);
  return parameter;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string_view lines = take_until(text, '\xFF');
  IncomingRequest incoming;
  std::deque<std::string> bytes;  // what the inputs borrow
  bool decoupled = false;
  bool lora_control = false;
  while (!lines.empty()) {
    std::string_view line = take_until(lines, '\n');
    const std::string_view kind = take_until(line, ' ');
    if (kind == "i") {
      InputTensor& tensor = incoming.inputs.emplace_back();
      tensor.name = take_until(line, ' ');
      tensor.datatype = static_cast<TRITONSERVER_DataType>(number<uint8_t>(take_until(line, ' ')) % 15);
      for (std::string_view dims = take_until(line, ' '); !dims.empty();) {
        tensor.shape.push_back(number<int64_t>(take_until(dims, ',')));
      }
      tensor.bytes = bytes.emplace_back(tensor_bytes(line));
    } else if (kind == "p") {
      incoming.parameters.push_back(read_parameter(line));
    } else if (kind == "o") {
      incoming.outputs.emplace_back(line);
    } else if (kind == "t") {
      incoming.timeout_us = number<uint64_t>(line);
    } else if (kind == "d") {
      decoupled = true;
    } else if (kind == "l") {
      lora_control = true;
    } else {
      incoming.id = line;
    }
  }
  // Anything else that is thrown ends the run.
  try {
    ModelSettings model;
    model.decoupled = decoupled;
    model.lora_control = lora_control;
    model.num_outputs = output_specs().size();
    adapt_request(incoming, model);
  } catch (const quire::InvalidArgument&) {
  }
  try {
    quire::EngineRequest request;
    quire::ChatRequest chat;
    quire::set_fields(request, chat, std::string(text), "sampling_parameters");
  } catch (const quire::InvalidArgument&) {
  }
  try {
    parse_multi_lora(std::string(text), "multi_lora.json");
  } catch (const quire::InvalidArgument&) {
  }
  return 0;
}
