#include "collective/backend/communicator_context.h"

#include <algorithm>

namespace hvd {

Crew::Crew(Mesh& mesh, const Team& team)
    : team_(team),
      abort_(mesh.abort()),
      stores_(team.ranks.size()),
      seen_(team.ranks.size()),
      slots_out_(team.ranks.size()) {
  std::vector<int> hosts;  // the mesh's number of each of ours
  for (int place = 0; place < team.size(); ++place) {
    const int rank = team.ranks[index(place)];
    const bool self = place == team.place;
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

Team Crew::part(const std::vector<int>& places) const {
  Team team;
  team.id = team_.id;
  for (const int place : places) {
    if (place == team_.place) team.place = team.size();
    team.ranks.push_back(team_.ranks[index(place)]);
  }
  return team;
}

Status Crew::surprise(int place, std::size_t due, std::size_t came) const {
  return Status::make(Code::kInternal,
                      "a segment of " + std::to_string(due) + " bytes was due, but " +
                          std::to_string(came) + " came",
                      "collective/crew: expect", team_.ranks[index(place)]);
}

Status tripped(const char* name) {
  return Status::make(Code::kInternal, std::string("failpoint ") + name, name);
}

}  // namespace hvd
