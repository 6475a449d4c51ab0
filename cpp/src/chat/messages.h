// What a template is told about the conversation.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "chat/value.h"

namespace quire::chat {

// The messages as templates see them: validated, without members that are null, and with reasoning under each
// of the names that templates know it by. Throws InvalidArgument, naming the message and the field.
Values read_messages(std::string_view json);

// Whether a message's content is a list of parts.
bool has_parts(const Values& messages);
// Whether a template writes the text of parts: `render` is tried with a message of one part. Templates that
// know only strings fail, leave it out, or write the list as Python or JSON would.
bool writes_parts(const std::function<std::string(Values)>& render);
// Makes each content that is a list of text parts one string, a line for each part. Throws InvalidArgument
// for a part of another type.
void join_parts(Values& messages);

// Marks the end of the last message's content, so that the prompt can be cut there. Returns the content
// without the mark.
std::string mark_final_message(Values& messages);
// Cuts the rendered prompt at the mark.
std::string cut_at_mark(std::string rendered, const std::string& content);

}  // namespace quire::chat
