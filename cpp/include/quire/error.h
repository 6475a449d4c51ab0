// The exceptions Quire throws. Each carries a one-line message fit for the person who made the call, in valid
// UTF-8, of 2,000 bytes or little more: what a message quotes, of a file or a request, may be anything. Bytes
// that are no text are written \xff, and the middle of what is longer is left out.
#pragma once

#include <stdexcept>
#include <string>

#include "quire/export.h"

namespace quire {

class QUIRE_API Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message);
  ~Error() override;
};

// The caller's mistake: names the field or file, the value, and what would do.
class QUIRE_API InvalidArgument : public Error {
 public:
  using Error::Error;
  ~InvalidArgument() override;
};

// The same of one of several requests that are given together.
class QUIRE_API InvalidRequest : public InvalidArgument {
 public:
  InvalidRequest(size_t place, const std::string& message) : InvalidArgument(message), place(place) {}
  ~InvalidRequest() override;

  size_t place;  // among them
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
