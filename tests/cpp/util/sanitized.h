#pragma once

namespace quire {

// Compiled for a sanitizer, where a step takes ten times as long and a stack frame several times the bytes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// How deep text is nested that recursion must not follow: 8 MiB of stack would not hold the frames.
inline constexpr int kTooDeep = kSanitized ? 60'000 : 200'000;

}  // namespace quire
