// Expressions, from tokens.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "chat/ast.h"
#include "chat/lexer.h"

namespace quire::chat {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  const Token& current() const { return tokens_[position_]; }
  const Token& look() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  Token next();
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view op);
  void expect_operator(std::string_view op);
  void expect(Token::Kind kind, std::string_view what);
  std::string expect_any_name();
  [[noreturn]] void fail_unexpected(std::string_view expected) const;

  ExpressionPtr parse_expression(bool with_conditional = true);
  // One expression, or several with commas between them as a tuple. `end_name` may follow it.
  ExpressionPtr parse_tuple(bool with_conditional = true, std::string_view end_name = {},
                            bool in_parentheses = false);
  ExpressionPtr parse_filters(ExpressionPtr input);  // from "|" on; the input may be null
  ExpressionPtr parse_filter(ExpressionPtr input);   // from the filter's name on

  // Macros whose bodies are being read, innermost last.
  std::vector<MacroDefinition*> macros_;
  // Uses of the filter "safe". It matters nothing when it comes last before output, and is refused elsewhere.
  int num_safe_filters_ = 0;

 private:
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr expression);
  ExpressionPtr parse_subscript(ExpressionPtr object);
  ExpressionPtr parse_call(ExpressionPtr callee);
  ExpressionPtr parse_test(ExpressionPtr input);
  void parse_arguments(Expression& call);

  std::vector<Token> tokens_;
  size_t position_ = 0;
  int nesting_ = 0;
};

}  // namespace quire::chat
