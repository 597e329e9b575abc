// Errors of the core for C: a number, and a message in the caller's memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>

#include "base/status.h"

namespace hvd::c_api {

inline void write_text(const char* sentence, char* text, std::size_t text_size) noexcept {
  if (text == nullptr || text_size == 0) return;
  const std::size_t length = std::min(std::strlen(sentence), text_size - 1);
  std::memcpy(text, sentence, length);
  text[length] = '\0';
}

inline std::int32_t told(const Status& status, char* text, std::size_t text_size) noexcept {
  write_text(status.message.c_str(), text, text_size);
  return static_cast<std::int32_t>(status.code);
}

inline std::int32_t told(Code code, const char* sentence, char* text, std::size_t size) noexcept {
  write_text(sentence, text, size);
  return static_cast<std::int32_t>(code);
}

// The code of the Status that `body` returns; no exception leaves it.
template <typename Body>
std::int32_t guarded(char* text, std::size_t text_size, const Body& body) noexcept {
  try {
    return told(body(), text, text_size);
  } catch (const std::bad_alloc&) {
    return told(Code::kUnavailable, "no memory", text, text_size);
  } catch (const std::exception& error) {
    return told(Code::kInternal, error.what(), text, text_size);
  } catch (...) {
    return told(Code::kInternal, "unknown exception", text, text_size);
  }
}

}  // namespace hvd::c_api
