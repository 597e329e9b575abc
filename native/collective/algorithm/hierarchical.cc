#include <algorithm>

#include "collective/algorithm/algorithms.h"
#include "collective/backend/plan.h"

namespace hvd {

// Torus.

namespace {

using Chunks = std::vector<std::vector<Operand>>;  // by number in the ring
using MakeSchedule = Schedule (*)(int group_rank, int size);

std::size_t index(int number) { return static_cast<std::size_t>(number); }

// Of these hosts, in their order.
template <typename T>
std::vector<T> chosen(const std::vector<T>& by_host, const std::vector<int>& hosts) {
  std::vector<T> found;
  found.reserve(hosts.size());
  for (const int host : hosts) found.push_back(by_host[index(host)]);
  return found;
}

class Torus {
 public:
  Torus(Mesh& mesh, const CommunicatorContext& context, const HostParts& parts,
        const HostGrid& grid, std::size_t segment_bytes)
      : mesh_(mesh),
        context_(context),
        parts_(parts),
        grid_(grid),
        segment_bytes_(segment_bytes),
        row_(grid.row_of(context.host_of(context.group_rank()))),
        column_(grid.column_of(context.host_of(context.group_rank()))) {}

  Status run(const Reduction& reduction) const {
    if (grid_.is_line()) return ring(parts_.workers, parts_.chunks, allreduce_schedule, reduction);
    const Reduction unscaled{reduction.dtype, reduction.op, {}};
    const std::size_t width = size_of(reduction.dtype);
    const std::vector<int> row = chosen(parts_.workers, grid_.row(row_));
    const std::vector<int> column = grid_.column(column_);
    Status status = ring(row, row_chunks(1), reduce_scatter_schedule, unscaled);
    if (status)
      status = ring(chosen(parts_.workers, column), chosen(parts_.chunks, column),
                    allreduce_schedule, reduction);
    if (status) status = ring(row, row_chunks(width), allgather_schedule, plain_bytes());
    return status;
  }

 private:
  Status ring(const std::vector<int>& workers, const Chunks& chunks, MakeSchedule schedule,
              const Reduction& reduction) const {
    CommunicatorContext members(mesh_, context_.part(workers));
    const Plan plan = Plan::listed(chunks, size_of(reduction.dtype),
                                   segment_bytes_ / size_of(wire_dtype(reduction.dtype)));
    return execute(members, schedule(members.group_rank(), members.size()), plan, reduction);
  }

  // Per column, the operands whose home is in it, in elements of 1 / `parts` of their size.
  Chunks row_chunks(std::size_t parts) const {
    Chunks chunks(index(grid_.columns));
    for (int column = 0; column < grid_.columns; ++column) {
      for (const int host : grid_.column(column)) {
        for (Operand slice : parts_.chunks[index(host)]) {
          slice.count *= parts;
          chunks[index(column)].push_back(slice);
        }
      }
    }
    return chunks;
  }

  Mesh& mesh_;
  const CommunicatorContext& context_;
  const HostParts& parts_;
  const HostGrid grid_;
  const std::size_t segment_bytes_;
  const int row_, column_;
};

}  // namespace

Status torus(Mesh& mesh, const CommunicatorContext& context, const HostParts& parts,
             const HostGrid& grid, Reduction reduction, std::size_t segment_bytes) {
  reduction.scaling.before = 1.0;  // applied already
  return Torus(mesh, context, parts, grid, segment_bytes).run(reduction);
}

// Hierarchy.

namespace {

class Hierarchy {
 public:
  Hierarchy(CommunicatorContext& context, Order& order, const Roles& roles, const Plan& plan,
            const Reduction& reduction, std::size_t longest)
      : context_(context),
        order_(order),
        roles_(roles),
        plan_(plan),
        reduction_(reduction),
        width_(size_of(reduction.dtype)),
        host_(context.host_of(context.group_rank())),
        part_bytes_(longest * width_) {
    for (const int group_rank : context.group_ranks_on(host_))
      if (group_rank != context.group_rank()) mates_.push_back(group_rank);
    for (int slice = 0; slice < context.size(); ++slice) {
      if (context.host_of(slice) == host_ && roles.worker(host_, slice) == context.group_rank())
        home_.push_back(slice);
    }
    kept_.resize(kKept * home_.size() * part_bytes_);
    slots_.resize(index(context.size()));
    filled_.resize(index(context.size()));
    parts_.resize(index(context.hosts()));
  }

  // Stage 1: the inputs of this rank to the workers of its host.
  Status send_inputs(std::size_t batch) {
    for (const int mate : mates_) {
      if (roles_.work_of(mate).empty()) continue;
      Result<std::byte*> slot = context_.acquire(mate);
      if (!slot) return slot.status();
      std::byte* at = slot.value();
      for (const int slice : roles_.work_of(mate)) {
        at = pack(segment(slice, batch), reduction_, at, context_.store(mate));
      }
      if (failpoint("collective.host_input")) return tripped("collective.host_input");
      context_.publish(mate, static_cast<std::size_t>(at - slot.value()));
    }
    return Status::ok();
  }

  // Stage 2: this host's parts, into the slots to their home, or kept if home is here.
  Status fold_parts(std::size_t batch) {
    const std::vector<int>& work = roles_.work_of(context_.group_rank());
    if (work.empty()) return Status::ok();
    if (Status status = see_inputs(work, batch); !status) return status;
    if (Status status = open_foreign(work); !status) return status;
    std::size_t kept = 0;
    for (const int slice : work) {
      const bool home = context_.host_of(slice) == host_;
      std::byte* const out = home ? kept_part(batch, kept++) : claim(slice, batch);
      fold_part(slice, batch, out);
    }
    for (const int mate : mates_) context_.release(mate);
    if (failpoint("collective.host_part")) return tripped("collective.host_part");
    publish_foreign();
    return Status::ok();
  }

  // Instead, for a torus: into the outputs.
  Status fold_in_place(std::size_t batch) {
    const std::vector<int>& work = roles_.work_of(context_.group_rank());
    if (work.empty()) return Status::ok();
    if (Status status = see_inputs(work, batch); !status) return status;
    for (const int slice : work) fold_part(slice, batch, nullptr);
    for (const int mate : mates_) context_.release(mate);
    return Status::ok();
  }

  // Stage 3: all hosts' parts of the slices whose home is here; results to the other hosts.
  Status fold_hosts(std::size_t batch) {
    if (home_.empty()) return Status::ok();
    const std::size_t bytes = bytes_of(home_, batch);
    std::vector<void*>& copies = context_.slots_out();
    copies.clear();
    for (int step = 1; step < context_.hosts(); ++step) {
      const int host = (host_ + step) % context_.hosts();
      const int peer = roles_.worker(host, home_.front());
      Result<const std::byte*> from = context_.expect(peer, bytes);
      if (!from) return from.status();
      parts_[index(host)] = from.value();
      Result<std::byte*> to = context_.acquire(peer);
      if (!to) return to.status();
      copies.push_back(to.value());
    }
    for (std::size_t i = 0; i < home_.size(); ++i) {
      parts_[index(host_)] = kept_part(batch, i);
      for (const Span& span : segment(home_[i], batch)) fold_span(home_[i], span);
    }
    if (failpoint("collective.host_fold")) return tripped("collective.host_fold");
    for (int step = 1; step < context_.hosts(); ++step) {
      const int peer = roles_.worker((host_ + step) % context_.hosts(), home_.front());
      context_.publish(peer, bytes);
      context_.release(peer);
    }
    return Status::ok();
  }

  // Stage 4: the results of other hosts; then all results of this worker to its host.
  Status spread(std::size_t batch) {
    const std::vector<int>& work = roles_.work_of(context_.group_rank());
    for (int step = 1; step < context_.hosts(); ++step) {
      const int host = (host_ + step) % context_.hosts();
      if (Status status = take_results(host, work, batch); !status) return status;
    }
    return send_results(batch);
  }

  // The second half of it: after a torus, all there is to do.
  Status send_results(std::size_t batch) {
    const std::vector<int>& work = roles_.work_of(context_.group_rank());
    for (const int mate : mates_) {
      if (work.empty()) break;
      Result<std::byte*> slot = context_.acquire(mate);
      if (!slot) return slot.status();
      std::byte* at = slot.value();
      for (const int slice : work) {
        at = put_results(at, slice, batch, context_.store(mate));
      }
      if (failpoint("collective.host_spread")) return tripped("collective.host_spread");
      context_.publish(mate, static_cast<std::size_t>(at - slot.value()));
    }
    return Status::ok();
  }

  // Stage 5: the results of the other workers of this host.
  Status copy_out(std::size_t batch) {
    for (const int mate : mates_) {
      const std::vector<int>& work = roles_.work_of(mate);
      if (work.empty()) continue;
      if (Status status = take(mate, work, batch); !status) return status;
    }
    return Status::ok();
  }

 private:
  static constexpr std::size_t kKept = 2;  // batches between stage 2 and stage 3

  Segment segment(int slice, std::size_t batch) const { return plan_.segment(index(slice), batch); }
  std::size_t bytes_of(const std::vector<int>& slices, std::size_t batch) const {
    std::size_t bytes = 0;
    for (const int slice : slices) bytes += elements_of(segment(slice, batch)) * width_;
    return bytes;
  }
  std::byte* kept_part(std::size_t batch, std::size_t number) {
    return kept_.data() + (batch % kKept * home_.size() + number) * part_bytes_;
  }

  std::byte* put_results(std::byte* at, int slice, std::size_t batch, SlotStore& store) {
    for (const Span& span : segment(slice, batch)) {
      store.copy(at, span.out, span.count * width_);
      at += span.count * width_;
    }
    return at;
  }

  // The inputs of the other members of this host for this worker.
  Status see_inputs(const std::vector<int>& work, std::size_t batch) {
    for (const int mate : mates_) {
      Result<const std::byte*> slot = context_.expect(mate, bytes_of(work, batch));
      if (!slot) return slot.status();
      context_.seen()[index(mate)] = slot.value();
    }
    return Status::ok();
  }

  // A slot to every other host that is home of some of `work`.
  Status open_foreign(const std::vector<int>& work) {
    std::fill(slots_.begin(), slots_.end(), nullptr);
    for (const int slice : work) {
      const int home = context_.host_of(slice);
      const int peer = roles_.worker(home, slice);
      if (home == host_ || slots_[index(peer)] != nullptr) continue;
      Result<std::byte*> slot = context_.acquire(peer);
      if (!slot) return slot.status();
      slots_[index(peer)] = slot.value();
      filled_[index(peer)] = 0;
    }
    return Status::ok();
  }
  // The position of a slice's part in the slot to its home.
  std::byte* claim(int slice, std::size_t batch) {
    const std::size_t peer = index(roles_.worker(context_.host_of(slice), slice));
    std::byte* const at = slots_[peer] + filled_[peer];
    filled_[peer] += elements_of(segment(slice, batch)) * width_;
    return at;
  }
  void publish_foreign() {
    for (std::size_t peer = 0; peer < slots_.size(); ++peer) {
      if (slots_[peer] != nullptr) context_.publish(static_cast<int>(peer), filled_[peer]);
    }
  }

  // Without `out`, in place of the result.
  void fold_part(int slice, std::size_t batch, std::byte* out) {
    for (const Span& span : segment(slice, batch)) {
      context_.seen()[index(context_.group_rank())] = prescaled(span, reduction_);
      order_.fold_host(reduction_, slice, host_, out != nullptr ? out : span.out,
                       context_.seen().data(), span.count);
      if (out != nullptr) out += span.count * width_;
      for (const int mate : mates_) context_.seen()[index(mate)] += span.count * width_;
    }
  }

  void fold_span(int slice, const Span& span) {
    std::vector<void*>& copies = context_.slots_out();
    order_.fold_hosts(reduction_, slice, span.out, copies.data(), copies.size(), parts_.data(),
                      span.count);
    for (const std::byte*& part : parts_) part += span.count * width_;
    for (void*& copy : copies) copy = static_cast<std::byte*>(copy) + span.count * width_;
  }

  // Results of `work` whose home is `host`, from its worker there.
  Status take_results(int host, const std::vector<int>& work, std::size_t batch) {
    theirs_.clear();
    for (const int slice : work) {
      if (context_.host_of(slice) == host) theirs_.push_back(slice);
    }
    if (theirs_.empty()) return Status::ok();
    return take(roles_.worker(host, theirs_.front()), theirs_, batch);
  }

  Status take(int peer, const std::vector<int>& slices, std::size_t batch) {
    Result<const std::byte*> slot = context_.expect(peer, bytes_of(slices, batch));
    if (!slot) return slot.status();
    const std::byte* at = slot.value();
    for (const int slice : slices) at = unpack(segment(slice, batch), width_, at);
    context_.release(peer);
    return Status::ok();
  }

  CommunicatorContext& context_;
  Order& order_;
  const Roles& roles_;
  const Plan& plan_;
  const Reduction& reduction_;
  const std::size_t width_;  // bytes of an element
  const int host_;
  const std::size_t part_bytes_;         // room for one slice's part of one batch
  std::vector<int> mates_;               // the other members of this host
  std::vector<int> home_;                // slices whose home is here and that this member works on
  std::vector<std::byte> kept_;          // their parts
  std::vector<std::byte*> slots_;        // by group rank: being filled with parts
  std::vector<std::size_t> filled_;      // by group rank: bytes of it
  std::vector<const std::byte*> parts_;  // by host
  std::vector<int> theirs_;
};

// This rank's slices, by their home.
HostParts parts_of(const CommunicatorContext& context, const Roles& roles,
                   const std::vector<Operand>& operands, std::size_t width) {
  const std::vector<int>& work = roles.work_of(context.group_rank());
  const std::size_t slices = index(context.size());
  HostParts parts;
  parts.chunks.resize(index(context.hosts()));
  for (int host = 0; host < context.hosts(); ++host)
    parts.workers.push_back(roles.worker(host, work.front()));
  for (const int slice : work) {
    for (const Operand& operand : operands) {
      const std::size_t begin = slice_begin(operand.count, index(slice), slices);
      std::byte* const at = static_cast<std::byte*>(operand.out) + begin * width;
      parts.chunks[index(context.host_of(slice))].push_back(
          {at, at, slice_begin(operand.count, index(slice) + 1, slices) - begin});
    }
  }
  return parts;
}

}  // namespace

Roles::Roles(const CommunicatorContext& context) : context_(context), work_(index(context.size())) {
  number_.resize(index(context.size()));
  for (int host = 0; host < context.hosts(); ++host) {
    const std::vector<int>& group_ranks = context.group_ranks_on(host);
    if (group_ranks.size() != context.group_ranks_on(0).size()) even_ = false;
    for (std::size_t i = 0; i < group_ranks.size(); ++i)
      number_[index(group_ranks[i])] = static_cast<int>(i);
  }
  for (int host = 0; host < context.hosts(); ++host) {
    for (int slice = 0; slice < context.size(); ++slice)
      work_[index(worker(host, slice))].push_back(slice);
  }
}

int Roles::worker(int host, int slice) const {
  return context_.group_ranks_on(host)[even_ ? index(number_[index(slice)]) : 0];
}

std::size_t Roles::most_work() const {
  std::size_t most = 0;
  for (const std::vector<int>& work : work_) most = std::max(most, work.size());
  return most;
}

Status hierarchical(Mesh& mesh, CommunicatorContext& context, Order& order,
                    const std::vector<Operand>& operands, const Reduction& reduction,
                    const HierarchyRules& rules) {
  const Roles roles(context);
  const std::size_t width = size_of(reduction.dtype);
  const std::size_t longest =
      std::max<std::size_t>(1, rules.segment_bytes / (roles.most_work() * width));
  const Plan plan = Plan::sliced(operands, width, index(context.size()), longest);
  Hierarchy work(context, order, roles, plan, reduction, longest);
  const std::size_t lag = context.slots() > 3 ? 1 : 0;
  const Stage inputs{0, [&work](std::size_t batch) { return work.send_inputs(batch); }};
  const auto copy_out = [&work](std::size_t batch) { return work.copy_out(batch); };
  if (context.hosts() < rules.torus_hosts)
    return run_pipeline(plan.segments(),
                        {inputs,
                         {lag, [&work](std::size_t batch) { return work.fold_parts(batch); }},
                         {2 * lag, [&work](std::size_t batch) { return work.fold_hosts(batch); }},
                         {3 * lag, [&work](std::size_t batch) { return work.spread(batch); }},
                         {4 * lag, copy_out}});
  Status status = run_pipeline(
      plan.segments(),
      {inputs, {lag, [&work](std::size_t batch) { return work.fold_in_place(batch); }}});
  if (status && !roles.work_of(context.group_rank()).empty())
    status = torus(mesh, context, parts_of(context, roles, operands, width),
                   host_grid(context.hosts(), rules.torus_hosts), reduction, rules.segment_bytes);
  if (!status) return status;
  return run_pipeline(
      plan.segments(),
      {{0, [&work](std::size_t batch) { return work.send_results(batch); }}, {lag, copy_out}});
}

}  // namespace hvd
