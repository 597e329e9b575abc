// Engines for programs without Python.
#pragma once

#include "c_api/current.h"

namespace hvd::c_api {

hvd_engine* start(std::int32_t rank, std::int32_t size, hvd_exchange exchange, void* context,
                  const char* const* names, const char* const* values, std::size_t options_count,
                  char* text, std::size_t text_size) noexcept;

}  // namespace hvd::c_api
