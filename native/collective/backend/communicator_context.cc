#include "collective/backend/communicator_context.h"

#include <algorithm>

namespace hvd {

CommunicatorContext::CommunicatorContext(Mesh& mesh, const Group& group)
    : group_(group),
      abort_(mesh.abort()),
      stores_(group.ranks.size()),
      seen_(group.ranks.size()),
      slots_out_(group.ranks.size()) {
  std::vector<int> hosts;  // the mesh's number of each of ours
  for (int place = 0; place < group.size(); ++place) {
    const int rank = group.ranks[index(place)];
    const bool self = place == group.place;
    to_.push_back(self ? nullptr : &mesh.to(rank));
    from_.push_back(self ? nullptr : &mesh.from(rank));
    const int number = mesh.topology().host_of[index(rank)];
    const auto known = std::find(hosts.begin(), hosts.end(), number);
    const auto host = static_cast<std::size_t>(known - hosts.begin());
    if (known == hosts.end()) {
      hosts.push_back(number);
      places_on_.emplace_back();
    }
    host_of_.push_back(static_cast<int>(host));
    places_on_[host].push_back(place);
  }
}

Group CommunicatorContext::part(const std::vector<int>& places) const {
  Group group;
  group.id = group_.id;
  for (const int place : places) {
    if (place == group_.place) group.place = group.size();
    group.ranks.push_back(group_.ranks[index(place)]);
  }
  return group;
}

Status CommunicatorContext::surprise(int place, std::size_t due, std::size_t came) const {
  return Status::make(Code::kInternal,
                      "a segment of " + std::to_string(due) + " bytes was due, but " +
                          std::to_string(came) + " came",
                      "collective/communicator_context: expect", group_.ranks[index(place)]);
}

Status tripped(const char* name) {
  return Status::make(Code::kInternal, std::string("failpoint ") + name, name);
}

}  // namespace hvd
