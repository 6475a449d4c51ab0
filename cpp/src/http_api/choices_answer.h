// Answers with choices: those of /v1/completions and /v1/chat/completions.
#pragma once

#include <string>
#include <vector>

#include "http_api/http_answer.h"

namespace quire {

class ChoicesAnswer : public HttpAnswer {
 protected:
  using HttpAnswer::HttpAnswer;

  // A choice's event, "" for none; and its part of a body. `choice` counts over all prompts.
  virtual std::string event(size_t choice, const CompletionOutput& delta) = 0;
  virtual OrderedJson choice_json(size_t choice, const CompletionOutput& completion,
                                  const RequestOutput& output) = 0;
  virtual const char* object(bool is_event) const = 0;

  // {"id": ..., "choices": [ and the end of an event that is not the last.
  std::string begin_event();
  std::string end_event() const;

 private:
  std::string write_delta(size_t prompt, const CompletionOutput& delta) final;
  std::string write_end() final;
  std::string write_body(const std::vector<RequestOutput>& outputs) final;
  std::string error_body(const HttpError& error) const final;
  std::string error_events(const HttpError& error) final;
  OrderedJson usage_json() const;
  size_t choice_of(size_t prompt, const CompletionOutput& output) const;

  std::string event_head_;
};

}  // namespace quire
