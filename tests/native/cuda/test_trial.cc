// A way is tried before it is taken: sums that are wrong or do not come, on one rank, are
// everybody's reason not to take it; of several forms the fastest is taken.
#include <doctest/doctest.h>

#include <atomic>

#include "cuda/ring_cases.h"
#include "cuda/trial.h"

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;

// A ring, and what is put in front of its allreduce.
class Trick final : public DeviceBackend {
 public:
  using Allreduce = std::function<Status(std::size_t form, DeviceBackend&, const Team&,
                                         const std::vector<Operand>&, const Reduction&)>;
  Trick(std::unique_ptr<DeviceBackend> ring, std::size_t forms, Allreduce allreduce)
      : ring_(std::move(ring)), forms_(forms), allreduce_(std::move(allreduce)) {}

  std::size_t taken() const { return form_; }
  std::size_t forms() const override { return forms_; }
  void take(std::size_t form) override { form_ = form; }
  Status allreduce(const Team& team, const std::vector<Operand>& operands,
                   const Reduction& reduction) override {
    return allreduce_(form_, *ring_, team, operands, reduction);
  }
  Status broadcast(const Team& team, const std::vector<Operand>& operands, int root) override {
    return ring_->broadcast(team, operands, root);
  }
  Status allgather(const Team& team, const std::vector<Gather>& tensors) override {
    return ring_->allgather(team, tensors);
  }
  Status alltoall(const Team& team, const Exchange& exchange) override {
    return ring_->alltoall(team, exchange);
  }
  Status reducescatter(const Team& team, const std::vector<Scatter>& tensors,
                       const Reduction& reduction) override {
    return ring_->reducescatter(team, tensors, reduction);
  }
  const char* last_algorithm() const override { return ring_->last_algorithm(); }
  Status let_go() override { return ring_->let_go(); }
  Status settle() override { return ring_->settle(); }

 private:
  std::unique_ptr<DeviceBackend> ring_;
  std::size_t forms_;
  std::size_t form_ = 99;
  Allreduce allreduce_;
};

constexpr RingSetup kSetup{3, 2, 1 << 20};

// What the trial says on a rank of three whose ring is played a trick on.
Status tried(Rank& rank, double seconds, const Trick::Allreduce& allreduce) {
  const Team team = everybody(3, rank.number());
  Trick trick(rank.ring(team), 1, allreduce);
  Status status = pass_trial(trick, rank.party(team), seconds);
  if (status) REQUIRE(trick.settle().message == "");
  if (status) rank.synchronize();
  return status;
}

Status honestly(DeviceBackend& ring, const Team& team, const std::vector<Operand>& operands,
                const Reduction& reduction) {
  return ring.allreduce(team, operands, reduction);
}

}  // namespace

TEST_CASE("trial: a ring that works passes") {
  on_rings(kSetup, [&](Rank& rank) {
    CHECK(tried(rank, 20, [](std::size_t form, auto&... given) {
            CHECK(form == 0);
            return honestly(given...);
          }).message == "");
  });
}

TEST_CASE("trial: a sum that is wrong on one rank is named on all") {
  on_rings(kSetup, [&](Rank& rank) {
    const Status status =
        tried(rank, 20,
              [&](std::size_t, DeviceBackend& ring, const Team& team,
                  const std::vector<Operand>& operands, const Reduction& reduction) {
                std::vector<Operand> elsewhere = operands;
                if (rank.number() == 1) elsewhere[0].out = const_cast<void*>(elsewhere[0].in);
                return ring.allreduce(team, elsewhere, reduction);
              });
    CHECK(status.code == Code::kUnavailable);
    CHECK(status.message.find("a first sum was wrong") != std::string::npos);
  });
}

TEST_CASE("trial: a form that sums nothing does not pass with the sums of another one") {
  on_rings(kSetup, [&](Rank& rank) {
    const Team team = everybody(3, rank.number());
    Trick trick(rank.ring(team), 2,
                [](std::size_t form, DeviceBackend& ring, const Team& all,
                   const std::vector<Operand>& operands, const Reduction& reduction) {
                  return form == 1 ? Status::ok() : honestly(ring, all, operands, reduction);
                });
    const Status status = pass_trial(trick, rank.party(team));
    CHECK(status.message.find("a first sum was wrong") != std::string::npos);
    REQUIRE(trick.settle().message == "");
    rank.synchronize();
  });
}

// Who is let go reads and writes without waiting for others: a race, as meant.
#ifndef __SANITIZE_THREAD__
TEST_CASE("trial: a rank whose part never begins holds nobody for ever") {
  on_rings(kSetup, [&](Rank& rank) {
    const Status status = tried(
        rank, 0.3,
        [&](std::size_t, DeviceBackend& ring, const Team& team,
            const std::vector<Operand>& operands, const Reduction& reduction) {
          return rank.number() == 2 ? Status::ok() : honestly(ring, team, operands, reduction);
        });
    CHECK(!status);
    CHECK(status.code == Code::kUnavailable);
  });
}

TEST_CASE("trial: an error on one rank is everybody's, with its reason") {
  on_rings(kSetup, [&](Rank& rank) {
    const Status status =
        tried(rank, 0.3,
              [&](std::size_t, DeviceBackend& ring, const Team& team,
                  const std::vector<Operand>& operands, const Reduction& reduction) {
                if (rank.number() == 1)
                  return Status::make(Code::kUnavailable, "this card is made of wood", "test", 1);
                return honestly(ring, team, operands, reduction);
              });
    CHECK(status.message == "this card is made of wood");
    CHECK(status.rank == 1);
  });
}
#endif

TEST_CASE("trial: the form whose slowest rank was fastest is taken, by all") {
  for (const std::size_t fast : {0, 1}) {
    CAPTURE(fast);
    on_rings(kSetup, [&](Rank& rank) {
      const Team team = everybody(3, rank.number());
      Trick trick(rank.ring(team), 2,
                  [&](std::size_t form, DeviceBackend& ring, const Team& all,
                      const std::vector<Operand>& operands, const Reduction& reduction) {
                    Status status = Status::ok();
                    for (int turn = 0; turn < (form == fast ? 1 : 10) && status; ++turn)
                      status = honestly(ring, all, operands, reduction);
                    return status;
                  });
      REQUIRE(pass_trial(trick, rank.party(team)).message == "");
      CHECK(trick.taken() == fast);
      REQUIRE(trick.settle().message == "");
      rank.synchronize();
    });
  }
}

}  // namespace hvd::cuda::test
