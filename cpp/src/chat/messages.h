// What a template is told about the conversation.
#pragma once

#include <string>
#include <string_view>

#include "chat/value.h"

namespace quire::chat {

// The messages as templates see them: validated, without members that are null, and with reasoning under each
// of the names that templates know it by. Throws InvalidArgument, naming the message and the field.
Values read_messages(std::string_view json);

// Marks the end of the last message's content, so that the prompt can be cut there. Returns the content
// without the mark.
std::string mark_final_message(Values& messages);
// Cuts the rendered prompt at the mark.
std::string cut_at_mark(std::string rendered, const std::string& content);

}  // namespace quire::chat
