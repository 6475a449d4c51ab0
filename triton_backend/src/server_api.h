// The server's functions, and errors that cross between its C and our C++.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "abi.h"

namespace quire::triton {

// Found at run time: the server may have been loaded where the linker does not look (RTLD_LOCAL, under the
// in-process Python server), and its library's name differs between distributions.
struct ServerApi {
#define QUIRE_TRITON_POINTER(result, name, parameters) result(*name) parameters = nullptr;
  QUIRE_TRITON_SERVER_FUNCTIONS(QUIRE_TRITON_POINTER)
#undef QUIRE_TRITON_POINTER
};

// Filled at the first call, as far as the server has the functions. Thread-safe.
const ServerApi& server_api();
// Throws std::runtime_error naming a function that the server lacks, or its API's version where that is not
// ours. Call once, before the others are used.
void require_server_api();

// An error of the server's, or for it.
class ServerError : public std::runtime_error {
 public:
  ServerError(TRITONSERVER_Error_Code code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  TRITONSERVER_Error_Code code() const { return code_; }

 private:
  TRITONSERVER_Error_Code code_;
};

// Throws ServerError, and deletes the error, unless it is null.
void check(TRITONSERVER_Error* error);
// For calls whose failure changes nothing that we could mend: logged and deleted.
void log_failure(TRITONSERVER_Error* error, const char* what);

// A client's text for an error message: its first 100 bytes, whole characters of them, and "..." for the
// rest.
std::string excerpt(std::string_view text);

// An error that the caller owns. Its message is valid UTF-8, and cut when it has more than 4096 bytes.
TRITONSERVER_Error* new_error(TRITONSERVER_Error_Code code, std::string_view message);

// The exception at hand, as an error that the caller owns: InvalidArgument is INVALID_ARG, ResourceExhausted
// is UNAVAILABLE, ServerError its own code, the rest INTERNAL. Only inside a catch block.
TRITONSERVER_Error* current_exception_as_error();

// Runs what an entry point does: an exception becomes the error that it returns.
template <typename Function>
TRITONSERVER_Error* guarded(Function&& function) {
  try {
    function();
    return nullptr;
  } catch (...) {
    return current_exception_as_error();
  }
}

void log(TRITONSERVER_LogLevel level, const std::string& message);

// A message's JSON text. Takes ownership of the message when `owned`.
std::string json_text(TRITONSERVER_Message* message, bool owned);

}  // namespace quire::triton
