// Libraries that are loaded at run time: plugins, drivers.
#pragma once

#include <string>

namespace hvd {

// Of the library or program that this address lies in; "" when the system does not say.
std::string file_of(const void* address);
// Of the one that this code has been linked into, with a slash at its end; "" likewise.
std::string own_folder();

// A loaded library. Never unloaded: what came out of it may outlive everything else.
class Library {
 public:
  Library() = default;
  // Its names are not shown to libraries that are loaded later.
  static Library open(const std::string& file);
  // One that somebody has brought into this process already. Names of its own that it has not
  // looked up yet stay so: it may be large.
  static Library loaded(const std::string& file);
  // The program, and what has been loaded for all to see.
  static Library of_process();

  explicit operator bool() const { return handle_ != nullptr; }
  // Why it is not there, in the loader's words.
  const std::string& why_not() const { return why_not_; }
  bool has(const char* symbol) const { return address_of(symbol) != nullptr; }
  // Null, and false: it has no such name.
  template <typename Function>
  bool find(const char* symbol, Function& function) const {
    function = reinterpret_cast<Function>(address_of(symbol));
    return function != nullptr;
  }
  // The same, and the name is added to those that are missing: "one, another".
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
