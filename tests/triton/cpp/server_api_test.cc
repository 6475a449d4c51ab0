#include "server_api.h"

#include <new>
#include <stdexcept>

#include "host/server_log.h"
#include "quire/error.h"
#include "triton_test.h"

namespace quire::triton::host {
namespace {

class ServerApiTest : public HostTest {};

template <typename Exception>
std::pair<TRITONSERVER_Error_Code, std::string> error_of(const Exception& exception) {
  try {
    throw exception;
  } catch (...) {
    TRITONSERVER_Error* error = current_exception_as_error();
    const std::pair result{TRITONSERVER_ErrorCode(error), std::string(TRITONSERVER_ErrorMessage(error))};
    TRITONSERVER_ErrorDelete(error);
    return result;
  }
}

TEST_F(ServerApiTest, EveryFunctionIsFoundInTheProcess) { EXPECT_NO_THROW(require_server_api()); }

TEST_F(ServerApiTest, ExceptionsBecomeErrorsOfTheirKind) {
  EXPECT_EQ(error_of(InvalidArgument("a")), std::pair(TRITONSERVER_ERROR_INVALID_ARG, std::string("a")));
  EXPECT_EQ(error_of(ResourceExhausted("b")), std::pair(TRITONSERVER_ERROR_UNAVAILABLE, std::string("b")));
  EXPECT_EQ(error_of(ServerError(TRITONSERVER_ERROR_NOT_FOUND, "c")),
            std::pair(TRITONSERVER_ERROR_NOT_FOUND, std::string("c")));
  EXPECT_EQ(error_of(std::bad_alloc()).first, TRITONSERVER_ERROR_UNAVAILABLE);
  EXPECT_EQ(error_of(std::runtime_error("d")).first, TRITONSERVER_ERROR_INTERNAL);
  EXPECT_EQ(error_of(5).first, TRITONSERVER_ERROR_INTERNAL);
}

TEST_F(ServerApiTest, AMessageIsValidUtf8WhateverTheClientSent) {
  EXPECT_EQ(error_of(std::runtime_error("\xE5\xAD\x97 \xF0\x9F\x98\x80")).second,
            "\xE5\xAD\x97 \xF0\x9F\x98\x80");
  EXPECT_EQ(error_of(std::runtime_error("a\xC3 \xFF\xE5\xAD")).second, "a? ???");
  EXPECT_EQ(error_of(std::runtime_error("\xC0\xAF")).second, "??") << "too long";
  EXPECT_EQ(error_of(std::runtime_error("\xE0\x80\xAF")).second, "???") << "too long";
  EXPECT_EQ(error_of(std::runtime_error("\xED\xA0\x80")).second, "???") << "half of a surrogate pair";
  EXPECT_EQ(error_of(std::runtime_error("\xF4\x90\x80\x80")).second, "????") << "past the last character";
}

TEST_F(ServerApiTest, WhatAClientWroteIsCutBetweenCharacters) {
  EXPECT_EQ(excerpt(std::string(100, 'a')), std::string(100, 'a'));
  EXPECT_EQ(excerpt(std::string(101, 'a')), std::string(100, 'a') + "...");
  for (const std::string character : {"\xC3\xA9", "\xE5\xAD\x97", "\xF0\x9F\x98\x80"}) {
    std::string text(99, 'a');
    for (int i = 0; i < 1'000'000; ++i) text += character;
    EXPECT_EQ(excerpt(text), std::string(99, 'a') + "...");
  }
  EXPECT_LE(excerpt(std::string(1000, '\x80')).size(), 103U) << "no UTF-8 at all";
}

TEST_F(ServerApiTest, AMessageHasAnEnd) {
  const std::string message = error_of(std::runtime_error(std::string(3'000'000, 'x'))).second;
  EXPECT_EQ(message, std::string(4096, 'x') + "...");
}

TEST_F(ServerApiTest, CheckThrowsTheErrorAndDeletesIt) {
  try {
    check(TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "gone"));
    ADD_FAILURE();
  } catch (const ServerError& error) {
    EXPECT_EQ(error.code(), TRITONSERVER_ERROR_NOT_FOUND);
    EXPECT_STREQ(error.what(), "gone");
  }
  check(nullptr);
}

TEST_F(ServerApiTest, AFailureThatIsLoggedIsDeleted) {
  log_failure(TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "gone"), "looking");
  log_failure(nullptr, "nothing");
  const auto lines = ServerLog::instance().take();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].level, TRITONSERVER_LOG_WARN);
  EXPECT_EQ(lines[0].text, "looking: gone");
}

TEST_F(ServerApiTest, AMessageThatIsOwnedIsDeletedEvenWhenItCannotBeRead) {
  TRITONSERVER_Message* message = nullptr;
  check(TRITONSERVER_MessageNewFromSerializedJson(&message, "{}", 2));
  EXPECT_EQ(json_text(message, /*owned=*/false), "{}");
  Faults::instance().arm("TRITONSERVER_MessageSerializeToJson", 0);
  EXPECT_THROW(json_text(message, /*owned=*/true), ServerError);
}

}  // namespace
}  // namespace quire::triton::host
