// Settings by name out of a document that was parsed; see quire/fields.h.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "formats/json.h"
#include "quire/chat.h"
#include "quire/engine.h"

namespace quire {

// Reads the members of `object`, whose text is `text`, but those that `passes_over` says yes to. `chat`: null
// where a door knows of no conversations.
void set_fields(EngineRequest& request, ChatRequest* chat, const Json& object, std::string_view text,
                const std::function<bool(const std::string&)>& passes_over);

}  // namespace quire
