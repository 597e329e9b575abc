// MeshOptions: their checks, the same for every kind of mesh, and the agreement of the ranks on
// them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transport/mesh/mesh.h"

namespace hvd {

Status check_options(int rank, int size, const MeshOptions& options);

// Slots are whole cache lines.
std::size_t rounded_slot_bytes(std::size_t slot_bytes);

// Agreement of options: the first exchange between ranks. All ranks must have the same options;
// they also exchange their host ids.

// Changes with every incompatible change between versions.
constexpr std::uint32_t kProtocol = 3;

using Settings = std::vector<std::pair<std::string, std::string>>;  // name, value

Settings settings_of(const MeshOptions& options);

std::string card_of(const std::string& host, const Settings& settings,
                    std::uint32_t protocol = kProtocol);

// The hosts by rank, or a Status, the same on every rank, that names a rank whose options differ
// from those of rank 0, and both values.
Result<std::vector<std::string>> read_cards(const std::vector<std::string>& cards);

}  // namespace hvd
