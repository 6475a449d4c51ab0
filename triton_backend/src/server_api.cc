#include "server_api.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <new>

#include "quire/error.h"
#include "quire/utf8.h"

namespace quire::triton {
namespace {

// The path of the server's library in this process; its file name may carry a hash
// ("libtritonserver-717102f0.so").
std::string find_server_library() {
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        const char* name = info->dlpi_name ? info->dlpi_name : "";
        const char* file = std::strrchr(name, '/');
        if (std::strncmp(file ? file + 1 : name, "libtritonserver", 15) != 0) return 0;
        *static_cast<std::string*>(found) = name;
        return 1;
      },
      &path);
  return path;
}

ServerApi resolve() {
  void* library = nullptr;
  if (!dlsym(RTLD_DEFAULT, "TRITONSERVER_ErrorNew")) {
    const std::string path = find_server_library();
    if (!path.empty()) library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  }
  ServerApi api;
#define QUIRE_TRITON_RESOLVE(result, name, parameters) \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library ? library : RTLD_DEFAULT, #name));
  QUIRE_TRITON_SERVER_FUNCTIONS(QUIRE_TRITON_RESOLVE)
#undef QUIRE_TRITON_RESOLVE
  if (library) dlclose(library);  // it was loaded before us, and outlives us
  return api;
}

// A client's bytes may be in a message, and the server puts it into JSON and gRPC as it is: what is no UTF-8
// becomes '?'.
std::string valid_utf8(std::string text) {
  for (size_t pos = 0;; ++pos) {
    const size_t invalid = find_invalid_utf8(std::string_view(text).substr(pos));
    if (invalid == std::string_view::npos) return text;
    pos += invalid;
    text[pos] = '?';
  }
}

// `text` itself, or its first whole characters of `max_bytes` bytes and "...".
std::string cut(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t size = max_bytes;
  // At most three bytes follow a character's first; what has more is no UTF-8.
  while (size + 3 > max_bytes && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  return std::string(text.substr(0, size)) + "...";
}

constexpr size_t kMaxExcerptBytes = 100;
constexpr size_t kMaxMessageBytes = 4096;

}  // namespace

const ServerApi& server_api() {
  static const ServerApi api = resolve();
  return api;
}

void require_server_api() {
  const ServerApi& api = server_api();
#define QUIRE_TRITON_REQUIRE(result, name, parameters)                   \
  if (!api.name) {                                                       \
    throw std::runtime_error("this Triton Inference Server lacks " #name \
                             ", which the quire backend needs; "         \
                             "use 24.10 or later");                      \
  }
  QUIRE_TRITON_SERVER_FUNCTIONS(QUIRE_TRITON_REQUIRE)
#undef QUIRE_TRITON_REQUIRE
  uint32_t major = 0, minor = 0;
  check(api.TRITONBACKEND_ApiVersion(&major, &minor));
  if (major != 1) {
    throw std::runtime_error("this Triton Inference Server's backend API is " + std::to_string(major) + "." +
                             std::to_string(minor) + "; the quire backend is made for 1.x");
  }
}

void check(TRITONSERVER_Error* error) {
  if (!error) return;
  const ServerError thrown(server_api().TRITONSERVER_ErrorCode(error),
                           server_api().TRITONSERVER_ErrorMessage(error));
  server_api().TRITONSERVER_ErrorDelete(error);
  throw thrown;
}

void log_failure(TRITONSERVER_Error* error, const char* what) {
  if (!error) return;
  log(TRITONSERVER_LOG_WARN, std::string(what) + ": " + server_api().TRITONSERVER_ErrorMessage(error));
  server_api().TRITONSERVER_ErrorDelete(error);
}

TRITONSERVER_Error* new_error(TRITONSERVER_Error_Code code, std::string_view message) {
  return server_api().TRITONSERVER_ErrorNew(code, valid_utf8(cut(message, kMaxMessageBytes)).c_str());
}

std::string excerpt(std::string_view text) { return cut(text, kMaxExcerptBytes); }

TRITONSERVER_Error* current_exception_as_error() {
  try {
    throw;
  } catch (const ServerError& error) {
    return new_error(error.code(), error.what());
  } catch (const InvalidArgument& error) {
    return new_error(TRITONSERVER_ERROR_INVALID_ARG, error.what());
  } catch (const ResourceExhausted& error) {
    return new_error(TRITONSERVER_ERROR_UNAVAILABLE, error.what());
  } catch (const std::bad_alloc&) {
    return new_error(TRITONSERVER_ERROR_UNAVAILABLE, "out of memory");
  } catch (const std::exception& error) {
    return new_error(TRITONSERVER_ERROR_INTERNAL, error.what());
  } catch (...) {
    return new_error(TRITONSERVER_ERROR_INTERNAL, "unknown exception");
  }
}

void log(TRITONSERVER_LogLevel level, const std::string& message) {
  if (!server_api().TRITONSERVER_LogIsEnabled(level)) return;
  TRITONSERVER_Error* error = server_api().TRITONSERVER_LogMessage(level, "quire", 0, message.c_str());
  if (error) server_api().TRITONSERVER_ErrorDelete(error);
}

std::string json_text(TRITONSERVER_Message* message, bool owned) {
  const char* text = nullptr;
  size_t size = 0;
  TRITONSERVER_Error* error = server_api().TRITONSERVER_MessageSerializeToJson(message, &text, &size);
  std::string json = error ? std::string() : std::string(text, size);
  if (owned) log_failure(server_api().TRITONSERVER_MessageDelete(message), "deleting a message");
  check(error);
  return json;
}

}  // namespace quire::triton
