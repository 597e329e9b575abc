// Libraries that are found at run time: plugins, drivers.
#pragma once

#include <string>

namespace hvd {

// Of the library or program that this code has been linked into, with a slash at its end; "" when
// the system does not say.
std::string own_folder();

// What the loader says of the failure before, on this thread.
std::string loader_words(const std::string& if_it_is_silent = "dlopen failed");

}  // namespace hvd
