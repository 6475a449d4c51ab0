#include <algorithm>

#include "chat/ast.h"
#include "chat/expression_parser.h"
#include "util/str.h"

namespace quire::chat {
namespace {

using StatementPtr = std::unique_ptr<Statement>;

constexpr int kMaxBlockDepth = 60;

StatementPtr make(Statement::Kind kind, int line) {
  auto statement = std::make_unique<Statement>();
  statement->kind = kind;
  statement->line = line;
  return statement;
}

class TemplateParser : private ExpressionParser {
 public:
  explicit TemplateParser(std::string_view source) : ExpressionParser(tokenize_template(source)) {}

  Body parse() {
    Body body = parse_body({});
    if (!current().is(Token::Kind::kEnd)) fail_unexpected("the end of the template");
    return body;
  }

 private:
  // Statements up to a block that one of `ends` begins, whose name is then the current token; without `ends`,
  // up to the end of the template.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    if (++block_depth_ > kMaxBlockDepth) {
      fail_at_line(current().line, str("blocks nested more than ", kMaxBlockDepth, " deep"));
    }
    Body body;
    for (;;) {
      const int line = current().line;
      if (current().is(Token::Kind::kData)) {
        body.push_back(make(Statement::Kind::kText, line));
        body.back()->text = next().text;
      } else if (current().is(Token::Kind::kVariableBegin)) {
        next();
        body.push_back(make(Statement::Kind::kOutput, line));
        body.back()->expressions.push_back(parse_output());
        expect(Token::Kind::kVariableEnd, "'}}'");
      } else if (current().is(Token::Kind::kBlockBegin)) {
        next();
        if (current().is(Token::Kind::kName) &&
            std::find(ends.begin(), ends.end(), current().text) != ends.end()) {
          break;
        }
        body.push_back(parse_statement());
        expect(Token::Kind::kBlockEnd, "'%}'");
      } else if (ends.size() == 0) {
        break;
      } else {
        fail_at_line(line, str("the template ends before '", *(ends.end() - 1), "'"));
      }
    }
    --block_depth_;
    return body;
  }

  // After a statement's head: "%}", the body, and the name that ends it, which is consumed and returned.
  std::string parse_block(Body& body, std::initializer_list<std::string_view> ends) {
    skip_operator(":");
    expect(Token::Kind::kBlockEnd, "'%}'");
    body = parse_body(ends);
    return next().text;
  }

  ExpressionPtr parse_output() {
    ExpressionPtr expression = parse_tuple();
    while (expression->kind == Expression::Kind::kFilter && expression->name == "safe") {
      ExpressionPtr input = std::move(expression->operands[0]);
      expression = std::move(input);
      --num_safe_filters_;
    }
    refuse_safe_filters(expression->line);
    return expression;
  }

  // Elsewhere "safe" would make later additions escape HTML.
  void refuse_safe_filters(int line) const {
    if (num_safe_filters_ > 0) fail_at_line(line, "the filter 'safe' inside an expression is not supported");
  }

  StatementPtr parse_statement() {
    const int line = current().line;
    if (!current().is(Token::Kind::kName)) fail_unexpected("the name of a statement");
    const std::string name = next().text;
    StatementPtr statement = parse_named(name, line);
    refuse_safe_filters(line);
    return statement;
  }

  StatementPtr parse_named(const std::string& name, int line) {
    if (name == "if") return parse_if(line);
    if (name == "for") return parse_for(line);
    if (name == "set") return parse_set(line);
    if (name == "macro") return parse_macro(line);
    if (name == "call") return parse_call_block(line);
    if (name == "with") return parse_with(line);
    if (name == "filter") {
      StatementPtr statement = make(Statement::Kind::kFilterBlock, line);
      statement->filter = parse_filters(parse_filter(nullptr));
      const int outer_loops = std::exchange(num_loops_, 0);
      parse_block(statement->body, {"endfilter"});
      num_loops_ = outer_loops;
      return statement;
    }
    if (name == "generation") {  // marks what the assistant wrote; the text is the same
      StatementPtr statement = make(Statement::Kind::kScope, line);
      const int outer_loops = std::exchange(num_loops_, 0);
      parse_block(statement->body, {"endgeneration"});
      num_loops_ = outer_loops;
      return statement;
    }
    if (name == "print") {
      StatementPtr statement = make(Statement::Kind::kOutput, line);
      while (!current().is(Token::Kind::kBlockEnd)) {
        if (!statement->expressions.empty()) expect_operator(",");
        statement->expressions.push_back(parse_expression());
      }
      return statement;
    }
    if (name == "break" || name == "continue") {
      if (num_loops_ == 0) fail_at_line(line, str("'", name, "' outside a loop"));
      return make(name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue, line);
    }
    fail_at_line(line, str("the statement '", name, "' is not supported"));
  }

  StatementPtr parse_if(int line) {
    StatementPtr statement = make(Statement::Kind::kIf, line);
    for (;;) {
      Statement::Branch& branch = statement->branches.emplace_back();
      branch.condition = parse_tuple(/*with_conditional=*/false);
      const std::string end = parse_block(branch.body, {"elif", "else", "endif"});
      if (end == "elif") continue;
      if (end == "else") parse_block(statement->branches.emplace_back().body, {"endif"});
      return statement;
    }
  }

  StatementPtr parse_for(int line) {
    StatementPtr statement = make(Statement::Kind::kFor, line);
    statement->target = parse_target(/*with_attribute=*/false);
    if (!skip_name("in")) fail_unexpected("'in'");
    statement->expressions.push_back(parse_tuple(/*with_conditional=*/false, "recursive"));
    if (skip_name("if")) statement->condition = parse_expression();
    if (current().is_name("recursive")) fail_at_line(line, "the loop option 'recursive' is not supported");
    ++num_loops_;
    const std::string end = parse_block(statement->body, {"endfor", "else"});
    --num_loops_;
    if (end == "else") parse_block(statement->otherwise, {"endfor"});
    return statement;
  }

  StatementPtr parse_set(int line) {
    StatementPtr statement = make(Statement::Kind::kSet, line);
    statement->target = parse_target(/*with_attribute=*/true);
    if (skip_operator("=")) {
      statement->expressions.push_back(parse_tuple());
      return statement;
    }
    statement->kind = Statement::Kind::kSetBlock;
    if (current().is_operator("|")) statement->filter = parse_filters(nullptr);
    const int outer_loops = std::exchange(num_loops_, 0);
    parse_block(statement->body, {"endset"});
    num_loops_ = outer_loops;
    return statement;
  }

  StatementPtr parse_with(int line) {
    StatementPtr statement = make(Statement::Kind::kWith, line);
    while (!current().is(Token::Kind::kBlockEnd)) {
      if (!statement->assignments.empty()) expect_operator(",");
      Target target = parse_single_target(/*with_attribute=*/false);
      expect_operator("=");
      statement->assignments.emplace_back(std::move(target), parse_expression());
    }
    parse_block(statement->body, {"endwith"});
    return statement;
  }

  StatementPtr parse_macro(int line) {
    StatementPtr statement = make(Statement::Kind::kMacro, line);
    statement->macro = std::make_unique<MacroDefinition>();
    statement->macro->name = expect_any_name();
    parse_parameters(*statement->macro);
    parse_macro_body(*statement->macro, "endmacro");
    return statement;
  }

  StatementPtr parse_call_block(int line) {
    StatementPtr statement = make(Statement::Kind::kCallBlock, line);
    statement->macro = std::make_unique<MacroDefinition>();
    statement->macro->name = "caller";
    if (current().is_operator("(")) parse_parameters(*statement->macro);
    statement->expressions.push_back(parse_expression());
    if (statement->expressions[0]->kind != Expression::Kind::kCall) fail_at_line(line, "'call' needs a call");
    parse_macro_body(*statement->macro, "endcall");
    return statement;
  }

  void parse_parameters(MacroDefinition& macro) {
    expect_operator("(");
    bool any_default = false;
    while (!current().is_operator(")")) {
      if (!macro.parameters.empty()) expect_operator(",");
      MacroDefinition::Parameter& parameter = macro.parameters.emplace_back();
      parameter.name = expect_any_name();
      if (skip_operator("=")) {
        parameter.default_value = parse_expression();
        any_default = true;
      } else if (any_default) {
        fail_at_line(current().line, "a parameter without a default after one with a default");
      }
    }
    next();
  }

  void parse_macro_body(MacroDefinition& macro, std::string_view end) {
    const int outer_loops = std::exchange(num_loops_, 0);
    macros_.push_back(&macro);
    parse_block(macro.body, {end});
    macros_.pop_back();
    num_loops_ = outer_loops;
  }

  // One target, or several with commas between them.
  Target parse_target(bool with_attribute) {
    Target first = parse_single_target(with_attribute);
    if (!current().is_operator(",")) return first;
    Target tuple;
    tuple.parts.push_back(std::move(first));
    while (skip_operator(",")) {
      if (!current().is(Token::Kind::kName) && !current().is_operator("(")) break;
      if (current().is_name("in")) break;
      tuple.parts.push_back(parse_single_target(with_attribute));
    }
    return tuple;
  }

  Target parse_single_target(bool with_attribute) {
    if (skip_operator("(")) {
      if (++block_depth_ > kMaxBlockDepth) fail_at_line(current().line, "targets nested too deeply");
      Target target = parse_target(with_attribute);
      --block_depth_;
      expect_operator(")");
      return target;
    }
    Target target;
    const int line = current().line;
    target.name = expect_any_name();
    if (target.name == "true" || target.name == "false" || target.name == "none" || target.name == "True" ||
        target.name == "False" || target.name == "None") {
      fail_at_line(line, str("'", target.name, "' cannot be assigned to"));
    }
    if (with_attribute && skip_operator(".")) target.attribute = expect_any_name();
    return target;
  }

  int block_depth_ = 0;
  int num_loops_ = 0;  // around the current statement, up to the macro or the text being collected
};

}  // namespace

Body parse_template(std::string_view source) { return TemplateParser(source).parse(); }

}  // namespace quire::chat
