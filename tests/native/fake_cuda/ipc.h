// IPC handles: process and file descriptor of a memfd, opened by way of /proc.
#pragma once

#include <string>

#include "fake_cuda/world.h"

namespace fake {

std::uint64_t random_token();
std::string name_of(std::uint64_t token);
// A process that lives has opened this one's handle, and not closed it.
bool others_have_open(const Memory& memory);
// Address space with these pages (fd -1: memory of this process), and a page out of reach at both
// ends.
CUresult map_pages(int fd, std::size_t bytes, CUdeviceptr& address);

}  // namespace fake
