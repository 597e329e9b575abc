// Sizes that rank 0 sends with an agreement decide how much is copied here: false ones are refused.
#include <doctest/doctest.h>

#include <limits>

#include "engine/engines.h"
#include "engine/execution/outputs.h"

using namespace hvd;
using namespace hvd::test;

namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

Work work_of(Kind kind, std::vector<std::int64_t> sizes) {
  Work work;
  work.response.kind = kind;
  work.response.names = {"x"};
  work.response.sizes = std::move(sizes);
  auto task = std::make_shared<Task>();
  task->request = request_for<float>("x", 4, kind);
  work.tasks = {task};
  return work;
}

Group second_of_two() {
  Group group;
  group.ranks = {0, 1};
  group.group_rank = 1;
  return group;
}

}  // namespace

TEST_CASE("sizes: an allgather has one size per rank, with this rank's own as requested") {
  const Group group = second_of_two();
  const auto fit = [&](std::vector<std::int64_t> sizes) {
    return sizes_fit(work_of(Kind::kAllgather, std::move(sizes)), group).is_ok();
  };
  CHECK(fit({7, 4}));
  CHECK(fit({0, 4}));
  CHECK_FALSE(fit({}));
  CHECK_FALSE(fit({4}));
  CHECK_FALSE(fit({7, 4, 4}));
  CHECK_FALSE(fit({7, 5}));  // would be read behind this rank's memory
  CHECK_FALSE(fit({-1, 4}));
  CHECK_FALSE(fit({kHuge, 4}));
}

TEST_CASE("sizes: an alltoall has one size per pair, and this rank sends no more than it has") {
  const Group group = second_of_two();
  const auto fit = [&](std::vector<std::int64_t> sizes) {
    return sizes_fit(work_of(Kind::kAlltoall, std::move(sizes)), group).is_ok();
  };
  CHECK(fit({1, 2, 3, 1}));
  CHECK(fit({9, 9, 0, 0}));
  CHECK_FALSE(fit({1, 2, 3}));
  CHECK_FALSE(fit({1, 2, 3, 2}));
  CHECK_FALSE(fit({1, 2, -3, 1}));
  CHECK_FALSE(fit({kHuge, kHuge, 3, 1}));
}

TEST_CASE("sizes: invalid sizes are an error that names rank 0 and the operation") {
  const Status status = sizes_fit(work_of(Kind::kAllgather, {}), second_of_two());
  CHECK(status.code == Code::kInternal);
  CHECK(status.rank == 0);
  CHECK(status.message == "rank 0 sent sizes for x that do not fit its tensors");
}
