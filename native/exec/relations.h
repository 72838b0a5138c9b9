// The exact Free-to-Launch relations of one RunState.
//
// A Free whose edge from a launch was removed may run before that launch is submitted. Its memory
// then stays within the stream's order, which protects it; it may leave that order (synchronise and
// recycle) only when every launch that an executed Free relates to was submitted.
//
// Occurrences count, because a node may run several times in one epoch (loops): the n-th run of a
// Free requires the n-th submission of each launch of its row. With, per node,
//   submitted = runs of a relation launch, freed = runs of a Free, required = the largest demand,
// the invariant is   unmet == number of launches with submitted < required.
// Several Frees that require the same occurrence of a launch so count once, and a launch that was
// submitted before its Free satisfies it at once.
//
// An epoch is one run. Only a node that ended well is recorded; the first abort status is kept and
// wakes everyone who waits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/spin_lock.h"
#include "base/status.h"
#include "exec/schedule.h"
#include "memory/recycle_gate.h"

namespace grainline {

// Shared fields: everything non-atomic is read and written under lock_, but rows_ and membership_,
// which only prepare writes. unmet_ and aborted_ are written under lock_ and read without it.
class Relations final : public RecycleGate {
 public:
  // What wait does while launches are unmet: block, or return not_ready so that the allocation can
  // be tried again later (see has_refused_wait).
  enum class Waiting : uint8_t { block, refuse };

  // Takes the rows of `nodes` nodes, which must outlive the use, and sizes the state once and for
  // all. invalid_argument as check_rows; then the rows of before stay in force. Not during an
  // epoch.
  Status prepare(const IdRows& rows, size_t nodes);
  // 33 N + 8 R + 8 for N nodes and R relations: the rows and the state.
  size_t memory_bytes() const;

  // internal when the count of epochs is exhausted; then the epoch is aborted.
  Status begin_epoch(Waiting waiting);
  uint64_t epoch() const { return epoch_; }

  // A node ended well. false: the epoch was aborted before, and nothing was recorded.
  bool record(size_t node) {
    const bool is_free = offsets_ != nullptr && offsets_[node] != offsets_[node + 1];
    if (!is_free && (membership_.empty() || !membership_[node])) return true;
    return record_related(node, is_free);
  }
  // Only the first abort of an epoch counts.
  void abort(Status status);

  // The recycle gate: ok when nothing is unmet, the abort status in an aborted epoch.
  Status wait() override;
  bool is_met() const noexcept { return unmet_.load(std::memory_order_acquire) == 0; }
  bool is_aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }
  // Whether wait has returned not_ready since the last call. By the thread that waits.
  bool has_refused_wait() noexcept { return std::exchange(has_refused_, false); }

  // For reports: the launches that are unmet now, ascending.
  std::vector<size_t> unmet_launches();

  void override_counts_for_test(uint64_t epoch, uint64_t generation);

 private:
  bool record_related(size_t node, bool is_free);
  bool record_free(size_t node);
  bool record_launch(size_t node);
  bool is_unmet(size_t launch) const { return submitted_[launch] < required_[launch]; }
  void abort_locked(Status status);
  void wake_all();

  const IdRows* rows_ = nullptr;
  const int64_t* offsets_ = nullptr;  // of rows_; null: no relations
  std::vector<uint64_t> submitted_, freed_, required_;
  std::vector<uint8_t> membership_;  // is a launch of some row

  SpinLock lock_;
  uint64_t epoch_ = 0;
  Status abort_status_;
  Waiting waiting_ = Waiting::block;
  bool has_refused_ = false;
  // Release with each change, so that who sees 0 sees what the last submission wrote.
  std::atomic<uint64_t> unmet_{0};
  std::atomic<bool> aborted_{false};
  std::atomic<uint32_t> wakes_{0};    // grows when waiters must look again
  std::atomic<uint32_t> waiters_{0};  // who sleeps on wakes_, or is about to
};

}  // namespace grainline
