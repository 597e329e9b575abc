// Libraries loaded at run time: plugins, drivers.
#pragma once

#include <string>

namespace hvd {

// The path of the library or program that contains this address; "": unknown.
std::string file_of(const void* address);
// The folder of the library that contains this code, with a trailing slash; "": unknown.
std::string own_folder();

// A loaded library. Never unloaded: its objects may outlive everything else.
class Library {
 public:
  Library() = default;
  // Its symbols are not visible to libraries that are loaded later.
  static Library open(const std::string& file);
  // A library that is loaded in this process already. Its unresolved symbols stay unresolved: it
  // may be large.
  static Library loaded(const std::string& file);
  // The program and all globally visible libraries.
  static Library of_process();

  explicit operator bool() const { return handle_ != nullptr; }
  // The loader's error.
  const std::string& why_not() const { return why_not_; }
  bool has(const char* symbol) const { return address_of(symbol) != nullptr; }
  // nullptr, and false: it has no such symbol.
  template <typename Function>
  bool find(const char* symbol, Function& function) const {
    function = reinterpret_cast<Function>(address_of(symbol));
    return function != nullptr;
  }
  // The same, and appends the name to the list of missing symbols: "one, another".
  template <typename Function>
  void find(const char* symbol, Function& function, std::string& missing) const {
    if (!find(symbol, function)) missing += (missing.empty() ? "" : ", ") + std::string(symbol);
  }

 private:
  Library(const char* file, int mode);
  void* address_of(const char* symbol) const;

  void* handle_ = nullptr;
  std::string why_not_;
};

}  // namespace hvd
