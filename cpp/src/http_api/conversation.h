// A conversation in OpenAI's form, put together from what other APIs divide otherwise.
#pragma once

#include <string>
#include <unordered_map>

#include "formats/json.h"

namespace quire {

class Conversation {
 public:
  // Begins a message of this role; what follows belongs to it.
  void begin(const std::string& role);
  // The role of the message that was begun last; "" before the first and after a tool's result.
  const std::string& role() const { return role_; }

  void add_text(const std::string& text);
  // Of an assistant.
  void add_reasoning(const std::string& text);
  void add_call(const std::string& id, const std::string& name, std::string arguments);
  // A message of its own. The tool's name is that of the call with this id.
  void add_result(const std::string& id, const std::string& text);

  bool empty() const { return messages_.empty(); }
  // Whether the last message is an assistant's text, which an answer can go on with.
  bool ends_with_text_of_assistant() const;
  std::string json() &&;

 private:
  OrderedJson messages_ = OrderedJson::array();
  std::string role_;
  std::unordered_map<std::string, std::string> name_of_call_;
};

}  // namespace quire
