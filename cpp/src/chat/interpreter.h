// Renders a parsed template.
//
// The work is bounded: how deep calls go and, by budget.h, how many steps are taken and how much memory is
// used in all. What exceeds that is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chat/ast.h"
#include "chat/filters.h"

namespace quire::chat {

// Variables. A loop's body, a macro and a few other blocks each get a scope of their own: they see what is
// around them, and what they set is gone after them.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  const Value* find(const std::string& name) const;
  void set(const std::string& name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  Interpreter() = default;
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Call once. `variables` are those that the template starts with. Throws InvalidArgument, with the line,
  // for what Jinja would raise, and with its message for what the template itself raises.
  std::string render(const Body& body, const Dict& variables);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  Flow execute(const Body& body, const ScopePtr& scope, std::string& out);
  Flow execute_statement(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow execute_if(const Statement& statement, const ScopePtr& scope, std::string& out);
  void execute_for(const Statement& statement, const ScopePtr& scope, std::string& out);
  void execute_with(const Statement& statement, const ScopePtr& scope, std::string& out);
  void execute_call_block(const Statement& statement, const ScopePtr& scope, std::string& out);
  // The text of the body, run in a scope of its own.
  std::string capture(const Body& body, const ScopePtr& scope);
  // A chain of filters whose innermost input is `text`.
  Value filter_text(const Expression& filter, std::string text, const ScopePtr& scope);
  void assign(const Target& target, const Value& value, const ScopePtr& scope);
  void write(const Value& value, std::string& out);

  Value evaluate(const Expression& expression, const ScopePtr& scope);
  Value evaluate_by_kind(const Expression& expression, const ScopePtr& scope);
  Value evaluate_dict(const Expression& expression, const ScopePtr& scope);
  Value evaluate_slice(const Expression& expression, const ScopePtr& scope);
  Value evaluate_call(const Expression& expression, const ScopePtr& scope, const Value* caller);
  Value evaluate_filter(const Expression& expression, const ScopePtr& scope);
  Value evaluate_test(const Expression& expression, const ScopePtr& scope);
  Value evaluate_binary(const Expression& expression, const ScopePtr& scope);
  Value evaluate_concat(const Expression& expression, const ScopePtr& scope);
  Value evaluate_compare(const Expression& expression, const ScopePtr& scope);
  Value evaluate_conditional(const Expression& expression, const ScopePtr& scope);
  Values evaluate_all(const Expression& expression, const ScopePtr& scope, size_t first = 0);
  Arguments evaluate_arguments(const Expression& expression, const ScopePtr& scope);

  Value look_up(const std::string& name, const ScopePtr& scope);
  Value call(const Value& callee, Arguments arguments);
  Value call_global(const std::string& name, const Arguments& arguments);
  Value call_macro(const Function& function, Arguments arguments);
  Value make_namespace(const Arguments& arguments);

  // Counts the memory of a value just made, without what it holds.
  const Value& charge(const Value& value);

  const Dict* variables_ = nullptr;                     // around the outermost scope
  std::vector<std::unique_ptr<Namespace>> namespaces_;  // they may refer to one another
  int depth_ = 0;
  bool is_located_ = false;  // the exception under way already names its line
};

}  // namespace quire::chat
