// The Unicode normalization forms.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/rewriter.h"

namespace quire::unicode {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// Whether it can be told at a glance that normalizing would change nothing. Says no too often, never yes.
bool is_surely_normalized(std::string_view text, NormalizationForm form);

// `text` must be valid UTF-8. `alignment`, of `text`, becomes that of the result; or is null.
std::string normalize(std::string_view text, NormalizationForm form, text::Alignment* alignment = nullptr);

}  // namespace quire::unicode
