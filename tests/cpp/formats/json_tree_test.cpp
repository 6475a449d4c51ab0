#include "formats/json_tree.h"

#include <gtest/gtest.h>

#include "formats/json.h"
#include "quire/error.h"

namespace quire {
namespace {

std::string again(const std::string& text) { return parse_json_tree(text, "text").text(); }

TEST(JsonTreeTest, MembersKeepTheirOrder) {
  const std::string text = R"({"z":1,"a":[true,null,{"y":"b","x":-2.5}],"m":{}})";
  EXPECT_EQ(again(text), text);
  EXPECT_EQ(again(" { \"z\" : [ ] } "), R"({"z":[]})");
}

TEST(JsonTreeTest, ValuesAreWhatTheyWere) {
  EXPECT_EQ(again("[9223372036854775807,-1,1.0,1e300,0.1]"), "[9223372036854775807,-1,1.0,1e+300,0.1]");
  EXPECT_EQ(again(R"("\u0001\"\\\n\u00e9\ud83d\ude00")"), "\"\\u0001\\\"\\\\\\n\xc3\xa9\xf0\x9f\x98\x80\"");
}

TEST(JsonTreeTest, AMemberMayBeThereOnce) {
  EXPECT_THROW(again(R"({"a":1,"b":2,"a":3})"), InvalidArgument);
  EXPECT_EQ(again(R"([{"a":1},{"a":2}])"), R"([{"a":1},{"a":2}])");
}

TEST(JsonTreeTest, ManyMembersAreReadInTheTimeThatTheyTake) {
  std::string text = "{";
  for (int i = 0; i < 100000; ++i) text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  text += "}";
  EXPECT_EQ(again(text), text);  // in order of the square it would be minutes
}

TEST(JsonTreeTest, EqualityIsJsons) {
  const auto same = [](const char* a, const char* b) {
    return parse_json_tree(a, "a").same_as(parse_json_tree(b, "b"));
  };
  EXPECT_TRUE(same("1", "1.0"));
  EXPECT_TRUE(same(R"({"a":1,"b":[2]})", R"({"b":[2.0],"a":1})"));
  EXPECT_FALSE(same("1", "true"));
  EXPECT_FALSE(same("[1,2]", "[2,1]"));
  EXPECT_FALSE(same(R"({"a":1})", R"({"a":1,"b":1})"));
}

TEST(FindMemberTextTest, TheTextOfAMemberIsFound) {
  const std::string text = R"( { "a\"}" : "},{" , "b":{"c":[1,{"b":2}] } ,"d" : -1.5e3, "e":"x"})";
  EXPECT_EQ(find_member_text(text, "b"), R"({"c":[1,{"b":2}] })");
  EXPECT_EQ(find_member_text(text, "d"), "-1.5e3");
  EXPECT_EQ(find_member_text(text, "e"), "\"x\"");
  EXPECT_EQ(find_member_text(text, "c"), "");
  EXPECT_EQ(find_member_text("[1]", "b"), "");
  EXPECT_EQ(find_member_text("{}", "b"), "");
  EXPECT_EQ(find_member_text("", "b"), "");
}

}  // namespace
}  // namespace quire
