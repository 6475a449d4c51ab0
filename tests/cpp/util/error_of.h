// How a call is refused.
#pragma once

#include <string>

#include "quire/error.h"

namespace quire {

// The message of the `Exception` that call() throws; empty when it throws none.
template <typename Exception = InvalidArgument>
std::string error_of(const auto& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace quire
