// Which forms the ring of a team can have: from the same facts the same, and reasons that name
// ranks.
#include <doctest/doctest.h>

#include <cstring>

#include "cuda/ring/ring_algorithm.h"

namespace hvd::cuda {
namespace {

// Rank r, a process of its own, on the device that its place in `devices` names.
std::vector<Facts> processes(const std::vector<unsigned char>& devices, const char* form = "auto") {
  std::vector<Facts> members(devices.size());
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    members[rank].rank = static_cast<std::int32_t>(rank);
    members[rank].process = rank + 1;
    members[rank].uuid.back() = devices[rank];
    members[rank].multiprocessors = 132;
    std::strncpy(members[rank].ring.data(), form, members[rank].ring.size() - 1);
  }
  return members;
}

std::vector<Facts> threads(const std::vector<unsigned char>& devices, const char* form = "auto") {
  auto members = processes(devices, form);
  for (Facts& member : members) member.process = 1;
  return members;
}

// "slices", "persistent 32", both, or the error.
std::string forms(const std::vector<Facts>& members) {
  const auto found = ring_forms(members);
  if (!found) return found.status().message;
  std::string text = found.value().slices ? "slices" : "";
  if (found.value().blocks > 0)
    text += (text.empty() ? "" : " ") + ("persistent " + std::to_string(found.value().blocks));
  return text;
}

TEST_CASE("forms: one device each: both are tried") {
  CHECK(forms(processes({0, 1})) == "slices persistent 32");
  CHECK(forms(processes({0, 1, 2, 3})) == "slices persistent 32");
  auto small = processes({0, 1, 2});
  small[1].multiprocessors = 14;
  CHECK(forms(small) == "slices persistent 14");
}

TEST_CASE("forms: processes that share a device take turns, unless MPS makes them one") {
  CHECK(forms(processes({0, 0})) == "slices");
  CHECK(forms(processes({0, 1, 2, 1})) == "slices");
  auto together = processes({0, 0});
  together[0].shared_contexts = 1;
  CHECK(forms(together) == "slices");
  together[1].shared_contexts = 1;
  CHECK(forms(together) == "slices persistent 32");
}

TEST_CASE("forms: threads of one process share a device's multiprocessors") {
  CHECK(forms(threads({0, 0, 0, 0})) == "slices persistent 32");
  CHECK(forms(threads({0, 0, 0, 0, 0})) == "slices persistent 26");
  auto tiny = threads({0, 0, 0});
  for (Facts& member : tiny) member.multiprocessors = 2;
  CHECK(forms(tiny) == "slices");
}

TEST_CASE("forms: where a driver ends long kernels, none stays") {
  auto shown = processes({0, 1});
  shown[1].time_limit = 1;
  CHECK(forms(shown) == "slices");
  for (Facts& member : shown) put(member.ring, "persistent");
  CHECK(forms(shown).find("seconds on the device of rank 1") != std::string::npos);
}

TEST_CASE("forms: a wish") {
  CHECK(forms(processes({0, 1}, "slices")) == "slices");
  CHECK(forms(processes({0, 1}, "persistent")) == "persistent 32");
  CHECK(forms(processes({0}, "persistent")) == "slices");
  CHECK(forms(processes({0, 1, 2, 1}, "persistent")) ==
        "HVD_GPU_RING=persistent is not possible among these ranks: rank 1 and rank 3 are "
        "processes that share a device: their kernels take turns; use auto or slices");
  auto tiny = threads({0, 0, 0}, "persistent");
  for (Facts& member : tiny) member.multiprocessors = 2;
  CHECK(forms(tiny) ==
        "HVD_GPU_RING=persistent is not possible among these ranks: a device has too few "
        "multiprocessors for all; use auto or slices");
}

}  // namespace
}  // namespace hvd::cuda
