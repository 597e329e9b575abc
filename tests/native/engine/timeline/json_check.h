// A strict reader of JSON (RFC 8259): does the text hold exactly one value? Knows arrays of objects
// well enough to hand out the elements' texts.
#pragma once

#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::test {

class JsonCheck {
 public:
  // The texts of the elements when `text` is one JSON array; `ok` tells.
  static std::vector<std::string> elements(const std::string& text, bool& ok) {
    JsonCheck check(text);
    std::vector<std::string> found;
    check.blanks();
    ok = check.array(&found);
    check.blanks();
    ok = ok && check.at_ == text.size();
    return found;
  }

 private:
  explicit JsonCheck(std::string_view text) : text_(text) {}

  bool eat(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }
  bool word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }
  bool digits() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_ > begin;
  }
  bool number() {
    eat('-');
    const bool zero = at_ < text_.size() && text_[at_] == '0';
    if (zero ? !eat('0') : !digits()) return false;
    if (eat('.') && !digits()) return false;
    if (eat('e') || eat('E')) {
      if (!eat('+')) eat('-');
      return digits();
    }
    return true;
  }
  bool string() {
    if (!eat('"')) return false;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) return false;
      if (text_[at_++] != '\\') continue;
      if (at_ >= text_.size()) return false;
      const char escape = text_[at_++];
      if (escape == 'u') {
        for (int i = 0; i < 4; ++i) {
          if (at_ >= text_.size() || std::isxdigit(static_cast<unsigned char>(text_[at_++])) == 0)
            return false;
        }
      } else if (std::string_view("\"\\/bfnrt").find(escape) == std::string_view::npos) {
        return false;
      }
    }
    return eat('"');
  }
  bool object() {
    if (!eat('{')) return false;
    blanks();
    if (eat('}')) return true;
    do {
      blanks();
      if (!string()) return false;
      blanks();
      if (!eat(':') || !value()) return false;
    } while (eat(','));
    return eat('}');
  }
  bool array(std::vector<std::string>* found = nullptr) {
    if (!eat('[')) return false;
    blanks();
    if (eat(']')) return true;
    do {
      blanks();
      const std::size_t begin = at_;
      if (!value()) return false;
      if (found != nullptr) found->emplace_back(text_.substr(begin, at_ - begin));
    } while (eat(','));
    return eat(']');
  }
  bool value() {
    blanks();
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    const bool ok = c == '{'   ? object()
                    : c == '[' ? array()
                    : c == '"' ? string()
                    : c == 't' ? word("true")
                    : c == 'f' ? word("false")
                    : c == 'n' ? word("null")
                               : number();
    blanks();
    return ok;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace hvd::test
