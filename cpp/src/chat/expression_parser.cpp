#include "chat/expression_parser.h"

#include <algorithm>

#include "chat/filters.h"
#include "util/str.h"

namespace quire::chat {
namespace {

// Bounds the stack that parsing and evaluating need.
constexpr int kMaxExpressionDepth = 200;
constexpr int kMaxNesting = 60;

ExpressionPtr make(Expression::Kind kind, int line) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  return expression;
}

void add_operand(Expression& expression, ExpressionPtr operand) {
  if (operand) {
    expression.depth = std::max(expression.depth, operand->depth + 1);
    if (expression.depth > kMaxExpressionDepth) {
      fail_at_line(expression.line, str("an expression nested more than ", kMaxExpressionDepth, " deep"));
    }
  }
  expression.operands.push_back(std::move(operand));
}

ExpressionPtr make_binary(Expression::Kind kind, std::string name, ExpressionPtr left, ExpressionPtr right) {
  ExpressionPtr expression = make(kind, left->line);
  expression->name = std::move(name);
  add_operand(*expression, std::move(left));
  add_operand(*expression, std::move(right));
  return expression;
}

ExpressionPtr make_literal(Value value, int line) {
  ExpressionPtr expression = make(Expression::Kind::kLiteral, line);
  expression->literal = std::move(value);
  return expression;
}

}  // namespace

Token ExpressionParser::next() {
  Token token = tokens_[position_];
  if (position_ + 1 < tokens_.size()) ++position_;
  return token;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

bool ExpressionParser::skip_operator(std::string_view op) {
  if (!current().is_operator(op)) return false;
  next();
  return true;
}

void ExpressionParser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) fail_unexpected(str("'", op, "'"));
}

void ExpressionParser::expect(Token::Kind kind, std::string_view what) {
  if (!current().is(kind)) fail_unexpected(what);
  next();
}

std::string ExpressionParser::expect_any_name() {
  if (!current().is(Token::Kind::kName)) fail_unexpected("a name");
  return next().text;
}

void ExpressionParser::fail_unexpected(std::string_view expected) const {
  fail_at_line(current().line, str("expected ", expected, ", got '", current().text, "'"));
}

ExpressionPtr ExpressionParser::parse_expression(bool with_conditional) {
  if (++nesting_ > kMaxNesting) {
    fail_at_line(current().line, str("brackets nested more than ", kMaxNesting, " deep"));
  }
  ExpressionPtr expression = with_conditional ? parse_conditional() : parse_or();
  --nesting_;
  return expression;
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_conditional, std::string_view end_name,
                                            bool in_parentheses) {
  const int line = current().line;
  const auto at_end = [&] {
    return current().is(Token::Kind::kVariableEnd) || current().is(Token::Kind::kBlockEnd) ||
           current().is_operator(")") || (!end_name.empty() && current().is_name(end_name));
  };
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (!at_end()) {
    items.push_back(parse_expression(with_conditional));
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !in_parentheses) fail_unexpected("an expression");
  ExpressionPtr tuple = make(Expression::Kind::kTuple, line);
  for (ExpressionPtr& item : items) add_operand(*tuple, std::move(item));
  return tuple;
}

ExpressionPtr ExpressionParser::parse_conditional() {
  ExpressionPtr value = parse_or();
  while (skip_name("if")) {
    ExpressionPtr conditional = make(Expression::Kind::kConditional, value->line);
    add_operand(*conditional, parse_or());
    add_operand(*conditional, std::move(value));
    add_operand(*conditional, skip_name("else") ? parse_expression() : nullptr);
    value = std::move(conditional);
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (skip_name("or")) left = make_binary(Expression::Kind::kOr, "", std::move(left), parse_and());
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (skip_name("and")) left = make_binary(Expression::Kind::kAnd, "", std::move(left), parse_not());
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  // A loop, so that a long row of them takes no stack.
  const int line = current().line;
  int num_nots = 0;
  while (skip_name("not")) ++num_nots;
  ExpressionPtr expression = parse_compare();
  for (; num_nots > 0; --num_nots) {
    ExpressionPtr negated = make(Expression::Kind::kNot, line);
    add_operand(*negated, std::move(expression));
    expression = std::move(negated);
  }
  return expression;
}

ExpressionPtr ExpressionParser::parse_compare() {
  static constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
  ExpressionPtr first = parse_sum();
  ExpressionPtr comparison;
  for (;;) {
    std::string op;
    if (current().is(Token::Kind::kOperator) &&
        std::find(std::begin(kOperators), std::end(kOperators), current().text) != std::end(kOperators)) {
      op = next().text;
    } else if (skip_name("in")) {
      op = "in";
    } else if (current().is_name("not") && look().is_name("in")) {
      next();
      next();
      op = "not in";
    } else {
      return comparison ? std::move(comparison) : std::move(first);
    }
    if (!comparison) {
      comparison = make(Expression::Kind::kCompare, first->line);
      add_operand(*comparison, std::move(first));
    }
    comparison->operators.push_back(op);
    add_operand(*comparison, parse_sum());
  }
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concat();
  while (current().is_operator("+") || current().is_operator("-")) {
    const std::string op = next().text;
    left = make_binary(Expression::Kind::kBinary, op, std::move(left), parse_concat());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concat() {
  ExpressionPtr first = parse_product();
  if (!current().is_operator("~")) return first;
  ExpressionPtr concat = make(Expression::Kind::kConcat, first->line);
  add_operand(*concat, std::move(first));
  while (skip_operator("~")) add_operand(*concat, parse_product());
  return concat;
}

ExpressionPtr ExpressionParser::parse_product() {
  ExpressionPtr left = parse_power();
  while (current().is_operator("*") || current().is_operator("/") || current().is_operator("//") ||
         current().is_operator("%")) {
    const std::string op = next().text;
    left = make_binary(Expression::Kind::kBinary, op, std::move(left), parse_power());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary(true);
  while (skip_operator("**"))
    left = make_binary(Expression::Kind::kBinary, "**", std::move(left), parse_unary(true));
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  if (++nesting_ > kMaxNesting) {
    fail_at_line(current().line, str("signs nested more than ", kMaxNesting, " deep"));
  }
  const int line = current().line;
  ExpressionPtr expression;
  if (current().is_operator("-") || current().is_operator("+")) {
    const Expression::Kind kind =
        next().text == "-" ? Expression::Kind::kNegate : Expression::Kind::kPositive;
    expression = make(kind, line);
    add_operand(*expression, parse_unary(false));
  } else {
    expression = parse_primary();
  }
  expression = parse_postfix(std::move(expression));
  while (with_filters) {
    if (current().is_operator("|")) {
      expression = parse_filters(std::move(expression));
    } else if (current().is_name("is")) {
      expression = parse_test(std::move(expression));
    } else if (current().is_operator("(")) {
      expression = parse_call(std::move(expression));
    } else {
      break;
    }
  }
  --nesting_;
  return expression;
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token& token = current();
  switch (token.kind) {
    case Token::Kind::kName: return parse_name();
    case Token::Kind::kString: {
      const int line = token.line;
      std::string text;
      while (current().is(Token::Kind::kString)) text += next().text;
      return make_literal(Value(std::move(text)), line);
    }
    case Token::Kind::kInteger: {
      const Token number = next();
      return make_literal(Value(number.integer), number.line);
    }
    case Token::Kind::kFloat: {
      const Token number = next();
      return make_literal(Value(number.real), number.line);
    }
    default: break;
  }
  if (token.is_operator("[")) return parse_list();
  if (token.is_operator("{")) return parse_dict();
  if (!skip_operator("(")) fail_unexpected("an expression");
  ExpressionPtr inner = parse_tuple(true, {}, /*in_parentheses=*/true);
  expect_operator(")");
  return inner;
}

ExpressionPtr ExpressionParser::parse_name() {
  const Token token = next();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return make_literal(Value(true), token.line);
  if (name == "false" || name == "False") return make_literal(Value(false), token.line);
  if (name == "none" || name == "None") return make_literal(Value(), token.line);
  for (MacroDefinition* macro : macros_) {
    macro->uses_varargs |= name == "varargs";
    macro->uses_kwargs |= name == "kwargs";
    macro->uses_caller |= name == "caller";
  }
  if (current().is_operator("(") && (name == "cycler" || name == "joiner" || name == "lipsum")) {
    fail_at_line(token.line, str("the function '", name, "' is not supported"));
  }
  ExpressionPtr expression = make(Expression::Kind::kName, token.line);
  expression->name = name;
  return expression;
}

ExpressionPtr ExpressionParser::parse_list() {
  ExpressionPtr list = make(Expression::Kind::kList, current().line);
  expect_operator("[");
  while (!current().is_operator("]")) {
    add_operand(*list, parse_expression());
    if (!skip_operator(",")) break;
  }
  expect_operator("]");
  return list;
}

ExpressionPtr ExpressionParser::parse_dict() {
  ExpressionPtr dict = make(Expression::Kind::kDict, current().line);
  expect_operator("{");
  while (!current().is_operator("}")) {
    add_operand(*dict, parse_expression());
    expect_operator(":");
    add_operand(*dict, parse_expression());
    if (!skip_operator(",")) break;
  }
  expect_operator("}");
  return dict;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr expression) {
  for (;;) {
    if (current().is_operator(".")) {
      const int line = next().line;
      ExpressionPtr access = make(Expression::Kind::kAttribute, line);
      add_operand(*access, std::move(expression));
      if (current().is(Token::Kind::kInteger)) {
        access->kind = Expression::Kind::kSubscript;
        add_operand(*access, make_literal(Value(next().integer), line));
      } else {
        access->name = expect_any_name();
      }
      expression = std::move(access);
    } else if (current().is_operator("[")) {
      expression = parse_subscript(std::move(expression));
    } else if (current().is_operator("(")) {
      expression = parse_call(std::move(expression));
    } else {
      return expression;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr object) {
  const int line = next().line;
  const auto ends_part = [&] { return current().is_operator(":") || current().is_operator("]"); };
  ExpressionPtr first = current().is_operator(":") ? nullptr : parse_expression();
  if (!current().is_operator(":")) {
    if (!current().is_operator("]")) fail_unexpected("']'");
    next();
    return make_binary(Expression::Kind::kSubscript, "", std::move(object), std::move(first));
  }
  ExpressionPtr slice = make(Expression::Kind::kSlice, line);
  add_operand(*slice, std::move(object));
  add_operand(*slice, std::move(first));
  next();
  add_operand(*slice, ends_part() ? nullptr : parse_expression());
  add_operand(*slice, skip_operator(":") && !ends_part() ? parse_expression() : nullptr);
  expect_operator("]");
  return slice;
}

void ExpressionParser::parse_arguments(Expression& call) {
  expect_operator("(");
  while (!current().is_operator(")")) {
    if (current().is_operator("*") || current().is_operator("**")) {
      fail_at_line(current().line, str("the argument '", current().text, "..' is not supported"));
    }
    if (current().is(Token::Kind::kName) && look().is_operator("=")) {
      std::string name = next().text;
      next();
      ExpressionPtr value = parse_expression();
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) fail_at_line(current().line, "a positional argument after a named one");
      add_operand(call, parse_expression());
    }
    if (!skip_operator(",")) break;
  }
  expect_operator(")");
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  ExpressionPtr call = make(Expression::Kind::kCall, current().line);
  add_operand(*call, std::move(callee));
  parse_arguments(*call);
  return call;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr input) {
  while (skip_operator("|")) input = parse_filter(std::move(input));
  return input;
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr input) {
  ExpressionPtr filter = make(Expression::Kind::kFilter, current().line);
  filter->name = expect_any_name();
  if (!is_filter(filter->name)) {
    fail_at_line(filter->line, str("the filter '", filter->name, "' is not supported"));
  }
  if (filter->name == "safe") ++num_safe_filters_;
  add_operand(*filter, std::move(input));
  if (current().is_operator("(")) parse_arguments(*filter);
  return filter;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr input) {
  ExpressionPtr test = make(Expression::Kind::kTest, next().line);
  const bool negated = skip_name("not");
  test->name = expect_any_name();
  if (!is_test(test->name)) fail_at_line(test->line, str("the test '", test->name, "' is not supported"));
  add_operand(*test, std::move(input));
  const Token& token = current();
  const bool starts_argument =
      (token.is(Token::Kind::kName) && token.text != "else" && token.text != "or" && token.text != "and") ||
      token.is(Token::Kind::kString) || token.is(Token::Kind::kInteger) || token.is(Token::Kind::kFloat) ||
      token.is_operator("[") || token.is_operator("{");
  if (token.is_operator("(")) {
    parse_arguments(*test);
  } else if (starts_argument) {
    if (token.is_name("is")) fail_at_line(token.line, "'is' after 'is'");
    add_operand(*test, parse_postfix(parse_primary()));
  }
  if (!negated) return test;
  ExpressionPtr inverted = make(Expression::Kind::kNot, test->line);
  add_operand(*inverted, std::move(test));
  return inverted;
}

}  // namespace quire::chat
