// The exceptions Quire throws. Each carries a one-line message fit for the person who made the call.
#pragma once

#include <stdexcept>
#include <string>

#include "quire/export.h"

namespace quire {

class QUIRE_API Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  ~Error() override;
};

// The caller's mistake: names the field or file, the value, and what would do.
class QUIRE_API InvalidArgument : public Error {
 public:
  using Error::Error;
  ~InvalidArgument() override;
};

// Nothing is wrong with the request, but there is no room for it: memory, queue, or a stopped engine.
class QUIRE_API ResourceExhausted : public Error {
 public:
  using Error::Error;
  ~ResourceExhausted() override;
};

// A promise of ours was broken. Please report it.
class QUIRE_API InternalError : public Error {
 public:
  using Error::Error;
  ~InternalError() override;
};

}  // namespace quire
