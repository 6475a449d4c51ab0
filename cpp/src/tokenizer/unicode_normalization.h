// The Unicode normalization forms.
#pragma once

#include <string>
#include <string_view>

namespace quire::unicode {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// Whether it can be told at a glance that normalizing would change nothing. Says no too often, never yes.
bool is_surely_normalized(std::string_view text, NormalizationForm form);

// `text` must be valid UTF-8.
std::string normalize(std::string_view text, NormalizationForm form);

}  // namespace quire::unicode
