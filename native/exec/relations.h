// The exact Free-to-Launch relations of one RunState.
//
// A Free whose edge from a launch was removed may run before that launch is submitted. Its memory
// then stays within the stream's order, which protects it; it may leave that order (synchronise and
// recycle) only when every launch that an executed Free relates to was submitted.
//
// Occurrences count, because a node may run several times in one epoch (loops): the n-th run of a
// Free requires the n-th submission of each launch of its row. With, per node,
//   runs = how often it ended well, required = the largest demand on a launch,
// a launch is unmet while   runs < required.
// Several Frees that require the same occurrence of a launch so count once, and a launch that was
// submitted before its Free satisfies it at once.
//
// No step takes a lock. A launch only counts its own runs, and counts only grow: what was once seen
// as met stays so until the next Free. So who frees keeps the launches that it saw unmet in a
// chain, and takes off those that are met when it has to know.
//
// An epoch is one run. Only a node that ended well is recorded; the first abort status is kept.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"
#include "exec/schedule.h"
#include "memory/recycle_gate.h"

namespace grainline {

// Who calls what: the Frees of all rows are recorded, and wait, is_met and has_refused_wait called,
// by one thread at a time, each seeing what the one before did: the memory worker, and the caller
// inside of a frame, which takes turns with it (worker_plan.h). A launch is recorded by one thread
// at a time too, which may be another one. Shared fields: runs_ and aborted_, and abort_status_
// under lock_. prepare and begin_epoch: while nobody records.
class Relations final : public RecycleGate {
 public:
  // Takes the rows of `nodes` nodes, which must outlive the use, and sizes the state once and for
  // all. invalid_argument as check_rows; then the rows of before stay in force. Not during an
  // epoch.
  Status prepare(const IdRows& rows, size_t nodes);
  // 33 N + 8 R + 8 for N nodes and R relations: the rows and the state.
  size_t memory_bytes() const;

  // internal when the count of epochs is exhausted; then the epoch is aborted.
  Status begin_epoch();
  uint64_t epoch() const { return epoch_; }

  // A node ended well. false: the epoch was aborted before, and nothing was recorded.
  bool record(size_t node) {
    if (roles_.empty() || roles_[node] == 0) return true;
    return record_related(node);
  }
  // Only the first abort of an epoch counts.
  void abort(Status status);

  // The recycle gate: ok when nothing is unmet, the abort status in an aborted epoch, else
  // not_ready: then the allocation can be tried again later.
  Status wait() override;
  bool is_met() noexcept;
  // Whether wait has returned not_ready since the last call.
  bool has_refused_wait() noexcept { return std::exchange(has_refused_, false); }

  // For reports: the launches that are unmet now, ascending. By any thread that sees the Frees.
  std::vector<size_t> unmet_launches() const;

  void override_counts_for_test(uint64_t epoch, uint64_t generation);

 private:
  using Count = std::atomic<uint64_t>;
  static constexpr uint8_t kFree = 1, kLaunch = 2;
  static constexpr uint64_t kUnchained = 0, kEnd = UINT64_MAX;

  bool record_related(size_t node);
  void require(size_t launch, uint64_t generation);
  bool is_unmet(size_t launch) const {
    // Acquire: who sees the count sees what the submission wrote.
    return runs_[launch].load(std::memory_order_acquire) < required_[launch];
  }

  const IdRows* rows_ = nullptr;
  std::vector<uint8_t> roles_;  // kFree: has a row; kLaunch: stands in one
  // By whoever runs the node.
  std::vector<Count> runs_;
  // By who frees. chain_: the number of the next launch, plus one, or kEnd; kUnchained: not in it.
  std::vector<uint64_t> required_, chain_;
  uint64_t chain_begin_ = kEnd;
  bool has_refused_ = false;

  uint64_t epoch_ = 0;
  std::mutex lock_;
  Status abort_status_;
  std::atomic<bool> aborted_{false};  // release, after the status
};

}  // namespace grainline
