// The book of shared memory: alike on every rank of a host, found by address, reused.
#include <doctest/doctest.h>

#include <cstring>

#include "engine/execution/regions.h"
#include "ranks.h"

namespace hvd::test {
namespace {

constexpr std::int64_t kPage = 4096;

struct Book {
  explicit Book(int size) : meshes(make_local_meshes(size, {})) {
    for (auto& mesh : meshes) regions.push_back(std::make_unique<Regions>(*mesh));
  }
  void allocate(std::int64_t region, std::int64_t bytes) {
    for (auto& one : regions) REQUIRE(one->allocate(region, bytes).message == "");
  }
  void release(std::int64_t region) {
    for (auto& one : regions) one->release(region);
  }
  std::vector<std::unique_ptr<Mesh>> meshes;
  std::vector<std::unique_ptr<Regions>> regions;
};

}  // namespace

TEST_CASE("regions: every rank has a part, knows its address, and sees the parts of other ranks") {
  Book book(3);
  book.allocate(5, 1000);
  for (int rank = 0; rank < 3; ++rank) {
    Regions& mine = *book.regions[static_cast<std::size_t>(rank)];
    std::byte* const part = mine.part_of(5, rank);
    REQUIRE((part != nullptr));
    CHECK(reinterpret_cast<std::uintptr_t>(part) % kPage == 0);
    CHECK(mine.bytes_of(5) == 1000);
    const std::int64_t place = 5 * kRegionSpan + 8;
    CHECK(mine.place_of(part + 8, 100) == place);
    CHECK(mine.place_of(part + 8, 992) == place);
    CHECK(mine.place_of(part + 8, 993) == kPrivate);
    CHECK(mine.place_of(part + 1000, 0) == 5 * kRegionSpan + 1000);
    CHECK(mine.place_of(mine.part_of(5, (rank + 1) % 3), 1) == kPrivate);  // another rank's part
    CHECK(mine.place_of(&place, 8) == kPrivate);
    CHECK(mine.place_of(nullptr, 0) == kPrivate);
    std::memset(part, rank + 1, 1000);
  }
  for (int rank = 0; rank < 3; ++rank) {
    Regions& mine = *book.regions[static_cast<std::size_t>(rank)];
    for (int other = 0; other < 3; ++other) {
      const auto offset = mine.offset_to(5 * kRegionSpan, other);
      REQUIRE(offset.has_value());
      CHECK(mine.part_of(5, rank)[*offset + 999] == static_cast<std::byte>(other + 1));
    }
  }
}

TEST_CASE("regions: gaps are reused equally on all ranks, and are zeroed") {
  Book book(2);
  book.allocate(1, 3 * kPage);
  book.allocate(2, kPage);
  book.allocate(3, 5 * kPage);
  std::byte* const first = book.regions[1]->part_of(1, 0);
  std::memset(book.regions[1]->part_of(1, 1), 7, 3 * kPage);
  book.release(1);
  CHECK((book.regions[0]->part_of(1, 0) == nullptr));
  CHECK_FALSE(book.regions[0]->offset_to(kRegionSpan, 1).has_value());
  CHECK(book.regions[0]->place_of(first, 1) == kPrivate);
  book.allocate(4, 4 * kPage);  // does not fit into the gap
  book.allocate(5, 2 * kPage);  // does
  CHECK((book.regions[1]->part_of(5, 0) == first));
  CHECK((book.regions[1]->part_of(4, 0) > book.regions[1]->part_of(3, 1)));
  for (int i = 0; i < 2 * kPage; ++i) {
    REQUIRE(book.regions[1]->part_of(5, 1)[i] == std::byte{0});
  }
}

TEST_CASE("regions: a request that cannot be met is refused and changes no state") {
  Book book(2);
  const auto more = static_cast<std::int64_t>(book.meshes[0]->heap()->bytes());
  for (auto& one : book.regions) {
    CHECK(one->allocate(1, more).code == Code::kUnavailable);
    CHECK(one->allocate(1, -1).code == Code::kUnavailable);
    CHECK((one->part_of(1, 0) == nullptr));
  }
  book.release(1);  // of nothing
  book.allocate(2, 0);
  CHECK((book.regions[0]->part_of(2, 1) != nullptr));
}

TEST_CASE("regions: none without shared memory") {
  const auto meshes = make_local_meshes(1, {});
  if (meshes[0]->heap() != nullptr) return;
  Regions regions(*meshes[0]);
  CHECK(regions.allocate(1, 10).code == Code::kUnavailable);
  CHECK(regions.place_of(&regions, 1) == kPrivate);
}

}  // namespace hvd::test
