#include "chat/interpreter.h"

#include <algorithm>

#include "chat/budget.h"
#include "chat/globals.h"
#include "chat/lexer.h"
#include "chat/python_format.h"
#include "chat/python_strings.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire::chat {
namespace {

using Kind = Value::Kind;

// Evaluations and statements within one another; each takes well under a kilobyte of stack.
constexpr int kMaxCallDepth = 1000;
constexpr int64_t kStepsPerEvaluation = 10;

class DepthGuard {
 public:
  explicit DepthGuard(int& depth) : depth_(depth) {
    if (++depth_ > kMaxCallDepth) {
      --depth_;
      fail("calls go too deep");
    }
  }
  ~DepthGuard() { --depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  int& depth_;
};

// What loop.changed() keeps could hold the loop itself, which would then never be freed.
struct ForgetChanged {
  Loop& loop;
  ~ForgetChanged() { loop.last_changed.reset(); }
};

ScopePtr make_scope(ScopePtr parent) { return std::make_shared<Scope>(Scope{std::move(parent), {}}); }

// About how many values of 32 bytes it takes up, without what it holds.
int64_t own_size(const Value& value) {
  if (value.is_sequence()) return 1 + static_cast<int64_t>(value.as_sequence().items.size());
  if (value.is(Kind::kDict)) return 1 + 4 * static_cast<int64_t>(value.as_dict().items.size());
  return value.is(Kind::kFunction) ? 4 : value.weight();
}

}  // namespace

const Value* Scope::find(const std::string& name) const {
  spend(1 + static_cast<int64_t>(variables.size() / 8));
  for (const auto& [known, value] : variables) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  spend(static_cast<int64_t>(variables.size() / 8));
  for (auto& [known, old] : variables) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Interpreter::~Interpreter() {
  // One by one, since a namespace may be at the end of a long chain of others.
  for (auto& name_space : namespaces_) name_space->attributes.clear();
}

std::string Interpreter::render(const Body& body, const Dict& variables) {
  const Budget budget;
  variables_ = &variables;
  std::string out;
  execute(body, make_scope(nullptr), out);
  return out;
}

const Value& Interpreter::charge(const Value& value) {
  spend_bytes(own_size(value) * 32);
  return value;
}

void Interpreter::write(const Value& value, std::string& out) {
  spend(value.weight());
  const std::string text = to_text(value);
  check_string_size(out.size() + text.size());
  out += text;
}

Interpreter::Flow Interpreter::execute(const Body& body, const ScopePtr& scope, std::string& out) {
  const DepthGuard guard(depth_);
  for (const auto& statement : body) {
    try {
      const Flow flow = execute_statement(*statement, scope, out);
      if (flow != Flow::kNext) return flow;
    } catch (const InvalidArgument& error) {
      if (is_located_) throw;
      is_located_ = true;
      std::string_view message = error.what();
      if (message.starts_with(kComplaintPrefix)) message.remove_prefix(kComplaintPrefix.size());
      fail_at_line(statement->line, std::string(message));
    }
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_statement(const Statement& statement, const ScopePtr& scope,
                                                 std::string& out) {
  spend(kStepsPerEvaluation);
  switch (statement.kind) {
    case Statement::Kind::kText:
      check_string_size(out.size() + statement.text.size());
      spend_copy(statement.text.size());
      out += statement.text;
      break;
    case Statement::Kind::kOutput:
      for (const ExpressionPtr& expression : statement.expressions) write(evaluate(*expression, scope), out);
      break;
    case Statement::Kind::kIf: return execute_if(statement, scope, out);
    case Statement::Kind::kFor: execute_for(statement, scope, out); break;
    case Statement::Kind::kSet:
      assign(statement.target, evaluate(*statement.expressions[0], scope), scope);
      break;
    case Statement::Kind::kSetBlock: {
      std::string text = capture(statement.body, scope);
      assign(statement.target,
             statement.filter ? filter_text(*statement.filter, std::move(text), scope)
                              : charge(Value(std::move(text))),
             scope);
      break;
    }
    case Statement::Kind::kWith: execute_with(statement, scope, out); break;
    case Statement::Kind::kMacro:
      scope->set(statement.macro->name, Value::function({.kind = Function::Kind::kMacro,
                                                         .name = statement.macro->name,
                                                         .self = {},
                                                         .macro = statement.macro.get(),
                                                         .scope = scope}));
      break;
    case Statement::Kind::kCallBlock: execute_call_block(statement, scope, out); break;
    case Statement::Kind::kFilterBlock:
      write(filter_text(*statement.filter, capture(statement.body, scope), scope), out);
      break;
    case Statement::Kind::kScope: write(Value(capture(statement.body, scope)), out); break;
    case Statement::Kind::kBreak: return Flow::kBreak;
    case Statement::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_if(const Statement& statement, const ScopePtr& scope,
                                          std::string& out) {
  for (const Statement::Branch& branch : statement.branches) {
    if (!branch.condition || is_true(evaluate(*branch.condition, scope)))
      return execute(branch.body, scope, out);
  }
  return Flow::kNext;
}

void Interpreter::execute_for(const Statement& statement, const ScopePtr& scope, std::string& out) {
  const Value iterable = evaluate(*statement.expressions[0], scope);
  spend(own_size(iterable));
  Values items = iterate(iterable);
  if (statement.condition) {
    Values chosen;
    for (const Value& item : items) {
      const ScopePtr inner = make_scope(scope);
      assign(statement.target, item, inner);
      if (is_true(evaluate(*statement.condition, inner))) chosen.push_back(item);
    }
    items = std::move(chosen);
  }
  if (items.empty()) {
    execute(statement.otherwise, make_scope(scope), out);
    return;
  }
  const auto loop = std::make_shared<Loop>();
  loop->items = std::move(items);
  const ForgetChanged forget{*loop};
  const Value loop_value = Value::loop(loop);
  for (; loop->index0 < loop->items.size(); ++loop->index0) {
    spend(kStepsPerEvaluation);
    const ScopePtr inner = make_scope(scope);
    inner->set("loop", loop_value);
    assign(statement.target, loop->items[loop->index0], inner);
    if (execute(statement.body, inner, out) == Flow::kBreak) break;
  }
}

void Interpreter::execute_with(const Statement& statement, const ScopePtr& scope, std::string& out) {
  const ScopePtr inner = make_scope(scope);
  for (const auto& [target, expression] : statement.assignments)
    assign(target, evaluate(*expression, scope), inner);
  execute(statement.body, inner, out);
}

void Interpreter::execute_call_block(const Statement& statement, const ScopePtr& scope, std::string& out) {
  const Value caller = Value::function({.kind = Function::Kind::kMacro,
                                        .name = "caller",
                                        .self = {},
                                        .macro = statement.macro.get(),
                                        .scope = scope});
  write(evaluate_call(*statement.expressions[0], scope, &caller), out);
}

std::string Interpreter::capture(const Body& body, const ScopePtr& scope) {
  std::string text;
  execute(body, make_scope(scope), text);
  return text;
}

Value Interpreter::filter_text(const Expression& filter, std::string text, const ScopePtr& scope) {
  const DepthGuard guard(depth_);
  const Expression* inner = filter.operands[0].get();
  const Value input = inner ? filter_text(*inner, std::move(text), scope) : Value(std::move(text));
  spend(input.weight());
  return charge(apply_filter(filter.name, input, evaluate_arguments(filter, scope)));
}

void Interpreter::assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (!target.parts.empty()) {
    const Values values = iterate(value);
    if (values.size() != target.parts.size()) {
      fail(str("expected ", target.parts.size(), " values to unpack, got ", values.size()));
    }
    for (size_t i = 0; i < values.size(); ++i) assign(target.parts[i], values[i], scope);
  } else if (target.attribute.empty()) {
    scope->set(target.name, value);
  } else {
    const Value object = look_up(target.name, scope);
    if (!object.is(Kind::kNamespace)) fail("cannot assign attribute on non-namespace object");
    check_namespace_name(target.attribute);
    object.as_namespace().set(target.attribute, value);
  }
}

Value Interpreter::look_up(const std::string& name, const ScopePtr& scope) {
  for (const Scope* s = scope.get(); s; s = s->parent.get()) {
    if (const Value* value = s->find(name)) return *value;
  }
  if (const Value* value = variables_->find(std::string_view(name))) return *value;
  if (is_global(name))
    return Value::function({.kind = Function::Kind::kGlobal, .name = name, .self = {}, .scope = {}});
  return Value::undefined(str("'", name, "' is undefined"));
}

Value Interpreter::evaluate(const Expression& expression, const ScopePtr& scope) {
  const DepthGuard guard(depth_);
  spend(kStepsPerEvaluation);
  return evaluate_by_kind(expression, scope);
}

Value Interpreter::evaluate_by_kind(const Expression& expression, const ScopePtr& scope) {
  const auto operand = [&](size_t i) { return evaluate(*expression.operands[i], scope); };
  switch (expression.kind) {
    case Expression::Kind::kLiteral: return expression.literal;
    case Expression::Kind::kName: return look_up(expression.name, scope);
    case Expression::Kind::kList: return charge(Value::list(evaluate_all(expression, scope)));
    case Expression::Kind::kTuple: return charge(Value::tuple(evaluate_all(expression, scope)));
    case Expression::Kind::kDict: return evaluate_dict(expression, scope);
    case Expression::Kind::kAttribute: return get_attribute(operand(0), expression.name);
    case Expression::Kind::kSubscript: {
      const Value object = operand(0);
      return get_item(object, operand(1));
    }
    case Expression::Kind::kSlice: return evaluate_slice(expression, scope);
    case Expression::Kind::kCall: return evaluate_call(expression, scope, nullptr);
    case Expression::Kind::kFilter: return evaluate_filter(expression, scope);
    case Expression::Kind::kTest: return evaluate_test(expression, scope);
    case Expression::Kind::kNegate: return negate(operand(0));
    case Expression::Kind::kPositive: return apply_operator("+", Value(int64_t{0}), operand(0));
    case Expression::Kind::kNot: return Value(!is_true(operand(0)));
    case Expression::Kind::kAnd: {
      const Value left = operand(0);
      return is_true(left) ? operand(1) : left;
    }
    case Expression::Kind::kOr: {
      const Value left = operand(0);
      return is_true(left) ? left : operand(1);
    }
    case Expression::Kind::kBinary: return evaluate_binary(expression, scope);
    case Expression::Kind::kConcat: return evaluate_concat(expression, scope);
    case Expression::Kind::kCompare: return evaluate_compare(expression, scope);
    case Expression::Kind::kConditional: return evaluate_conditional(expression, scope);
  }
  return Value();
}

Values Interpreter::evaluate_all(const Expression& expression, const ScopePtr& scope, size_t first) {
  Values values;
  values.reserve(expression.operands.size());
  for (size_t i = first; i < expression.operands.size(); ++i)
    values.push_back(evaluate(*expression.operands[i], scope));
  return values;
}

Value Interpreter::evaluate_dict(const Expression& expression, const ScopePtr& scope) {
  Dict dict;
  for (size_t i = 0; i < expression.operands.size(); i += 2) {
    const Value key = evaluate(*expression.operands[i], scope);
    dict.set(key, evaluate(*expression.operands[i + 1], scope));
  }
  return charge(Value::dict(std::move(dict)));
}

Value Interpreter::evaluate_slice(const Expression& expression, const ScopePtr& scope) {
  const Value object = evaluate(*expression.operands[0], scope);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (const auto& bound = expression.operands[i + 1]) bounds[i] = evaluate(*bound, scope);
  }
  return charge(get_slice(object, &bounds[0], &bounds[1], &bounds[2]));
}

Arguments Interpreter::evaluate_arguments(const Expression& expression, const ScopePtr& scope) {
  Arguments arguments;
  arguments.positional = evaluate_all(expression, scope, /*first=*/1);
  for (const auto& [name, value] : expression.named)
    arguments.named.emplace_back(name, evaluate(*value, scope));
  return arguments;
}

Value Interpreter::evaluate_filter(const Expression& expression, const ScopePtr& scope) {
  const Value input = evaluate(*expression.operands[0], scope);
  const Arguments arguments = evaluate_arguments(expression, scope);
  static constexpr std::string_view kShallow[] = {"length", "count", "first", "last", "list", "default", "d"};
  const bool is_shallow =
      std::find(std::begin(kShallow), std::end(kShallow), expression.name) != std::end(kShallow);
  spend(is_shallow ? own_size(input) : input.weight());
  return charge(apply_filter(expression.name, input, arguments));
}

Value Interpreter::evaluate_test(const Expression& expression, const ScopePtr& scope) {
  const Value input = evaluate(*expression.operands[0], scope);
  const Arguments arguments = evaluate_arguments(expression, scope);
  if (!arguments.positional.empty()) spend(input.weight() + arguments.positional[0].weight());
  return Value(apply_test(expression.name, input, arguments));
}

Value Interpreter::evaluate_binary(const Expression& expression, const ScopePtr& scope) {
  const Value left = evaluate(*expression.operands[0], scope);
  const Value right = evaluate(*expression.operands[1], scope);
  return charge(apply_operator(expression.name, left, right));
}

Value Interpreter::evaluate_concat(const Expression& expression, const ScopePtr& scope) {
  std::string text;
  for (const ExpressionPtr& operand : expression.operands) write(evaluate(*operand, scope), text);
  return charge(Value(std::move(text)));
}

Value Interpreter::evaluate_compare(const Expression& expression, const ScopePtr& scope) {
  Value left = evaluate(*expression.operands[0], scope);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.operands[i + 1], scope);
    spend(left.weight() + right.weight());
    if (!apply_comparison(expression.operators[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::evaluate_conditional(const Expression& expression, const ScopePtr& scope) {
  if (is_true(evaluate(*expression.operands[0], scope))) return evaluate(*expression.operands[1], scope);
  if (expression.operands[2]) return evaluate(*expression.operands[2], scope);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
}

Value Interpreter::evaluate_call(const Expression& expression, const ScopePtr& scope, const Value* caller) {
  const Value callee = evaluate(*expression.operands[0], scope);
  Arguments arguments = evaluate_arguments(expression, scope);
  if (caller) arguments.named.emplace_back("caller", *caller);
  return charge(call(callee, std::move(arguments)));
}

}  // namespace quire::chat
