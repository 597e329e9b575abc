// Requests and responses as bytes on the control channel. Little-endian, fixed layout, no padding:
//   message    u8 version, u8 tag ('Q' requests | 'R' responses), u32 n, n items
//   request    u8 kind, u8 op, i32 root, f64 prescale, f64 postscale, text name, u32 n, n tensors
//   tensor     u8 dtype, i32 device, u8 n, n x i64 extent
//   response   u8 kind, u8 code, i32 status rank, i32 rank, text message, text where, u32 n, n x
//   text name, u32 n, n x i64 rows text       u32 n, n bytes
// Every length is checked against what is left before anything is allocated; every enum against its
// range.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/request.h"

namespace hvd {

std::string encode(const std::vector<Request>& requests);
std::string encode(const std::vector<Response>& responses);

Result<std::vector<Request>> decode_requests(const std::string& bytes);
Result<std::vector<Response>> decode_responses(const std::string& bytes);

}  // namespace hvd
