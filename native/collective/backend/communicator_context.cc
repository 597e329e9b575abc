#include "collective/backend/communicator_context.h"

#include <algorithm>

namespace hvd {

CommunicatorContext::CommunicatorContext(Mesh& mesh, const Group& group)
    : group_(group),
      abort_(mesh.abort()),
      stores_(group.ranks.size()),
      seen_(group.ranks.size()),
      slots_out_(group.ranks.size()) {
  std::vector<int> hosts;  // the mesh's number of each host of the group
  for (int group_rank = 0; group_rank < group.size(); ++group_rank) {
    const int rank = group.ranks[index(group_rank)];
    const bool self = group_rank == group.group_rank;
    to_.push_back(self ? nullptr : &mesh.to(rank));
    from_.push_back(self ? nullptr : &mesh.from(rank));
    const int number = mesh.topology().host_of[index(rank)];
    const auto known = std::find(hosts.begin(), hosts.end(), number);
    const auto host = static_cast<std::size_t>(known - hosts.begin());
    if (known == hosts.end()) {
      hosts.push_back(number);
      group_ranks_on_.emplace_back();
    }
    host_of_.push_back(static_cast<int>(host));
    group_ranks_on_[host].push_back(group_rank);
  }
}

Group CommunicatorContext::part(const std::vector<int>& group_ranks) const {
  Group group;
  group.id = group_.id;
  for (const int group_rank : group_ranks) {
    if (group_rank == group_.group_rank) group.group_rank = group.size();
    group.ranks.push_back(group_.ranks[index(group_rank)]);
  }
  return group;
}

Status CommunicatorContext::surprise(int group_rank, std::size_t due, std::size_t came) const {
  return Status::make(Code::kInternal,
                      "a segment of " + std::to_string(due) + " bytes was due, but " +
                          std::to_string(came) + " came",
                      "collective/communicator_context: expect", group_.ranks[index(group_rank)]);
}

Status tripped(const char* name) {
  return Status::make(Code::kInternal, std::string("failpoint ") + name, name);
}

}  // namespace hvd
