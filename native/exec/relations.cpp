#include "exec/relations.h"

#include <algorithm>
#include <mutex>

#include "threads/parking.h"

namespace grainline {
namespace {

using Held = std::lock_guard<SpinLock>;

template <typename Row>
size_t bytes_of(const std::vector<Row>& rows) {
  return rows.capacity() * sizeof(Row);
}

}  // namespace

Status Relations::prepare(const IdRows& rows, size_t nodes) {
  if (Status status = check_rows(rows, nodes, "relations"); !status.is_ok()) return status;
  const size_t states = rows.offsets.empty() ? 0 : nodes;
  for (auto* generations : {&submitted_, &freed_, &required_})
    *generations = std::vector<uint64_t>(states);
  membership_ = std::vector<uint8_t>(states);
  for (const int64_t launch : rows.ids) membership_[static_cast<size_t>(launch)] = 1;
  rows_ = &rows;
  offsets_ = rows.offsets.empty() ? nullptr : rows.offsets.data();
  return {};
}

size_t Relations::memory_bytes() const {
  const size_t rows = rows_ == nullptr ? 0 : bytes_of(rows_->offsets) + bytes_of(rows_->ids);
  return rows + bytes_of(submitted_) + bytes_of(freed_) + bytes_of(required_) +
         bytes_of(membership_);
}

Status Relations::begin_epoch(Waiting waiting) {
  const Held held(lock_);
  for (auto* generations : {&submitted_, &freed_, &required_})
    std::ranges::fill(*generations, uint64_t{0});
  waiting_ = waiting;
  has_refused_ = false;
  abort_status_ = Status();
  unmet_.store(0, std::memory_order_release);
  aborted_.store(false, std::memory_order_release);
  if (epoch_ != UINT64_MAX) {
    ++epoch_;
    return {};
  }
  Status exhausted(StatusCode::internal, "the epochs of the relations are exhausted");
  abort_locked(exhausted);
  return exhausted;
}

bool Relations::record_related(size_t node, bool is_free) {
  const Held held(lock_);
  // Relaxed here and below: written under the lock that is held.
  if (aborted_.load(std::memory_order_relaxed)) return false;
  if (is_free && !record_free(node)) return false;
  return !membership_[node] || record_launch(node);
}

bool Relations::record_free(size_t node) {
  if (freed_[node] == UINT64_MAX) {
    abort_locked(Status(StatusCode::internal, "the generations of a Free are exhausted"));
    return false;
  }
  const uint64_t generation = ++freed_[node];
  uint64_t newly_unmet = 0;
  for (const int64_t id : rows_->row(node)) {
    const auto launch = static_cast<size_t>(id);
    if (required_[launch] >= generation) continue;
    const bool was_unmet = is_unmet(launch);
    required_[launch] = generation;
    newly_unmet += !was_unmet && is_unmet(launch);
  }
  if (newly_unmet != 0)
    unmet_.store(unmet_.load(std::memory_order_relaxed) + newly_unmet, std::memory_order_release);
  return true;
}

bool Relations::record_launch(size_t node) {
  if (submitted_[node] == UINT64_MAX) {
    abort_locked(Status(StatusCode::internal, "the generations of a launch are exhausted"));
    return false;
  }
  const bool was_unmet = is_unmet(node);
  ++submitted_[node];
  if (!was_unmet || is_unmet(node)) return true;
  const uint64_t unmet = unmet_.load(std::memory_order_relaxed) - 1;
  unmet_.store(unmet, std::memory_order_release);
  if (unmet == 0) wake_all();
  return true;
}

void Relations::abort(Status status) {
  const Held held(lock_);
  abort_locked(std::move(status));
}

void Relations::abort_locked(Status status) {
  if (aborted_.load(std::memory_order_relaxed)) return;
  abort_status_ = std::move(status);
  aborted_.store(true, std::memory_order_release);
  wake_all();
}

void Relations::wake_all() {
  // Sequential: either the waiter is counted here, or it sees the new number before it sleeps.
  wakes_.fetch_add(1, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) != 0) wake_all_sleepers(wakes_);
}

Status Relations::wait() {
  while (true) {
    // Acquire, before the conditions: a wake after this load makes the sleep return at once.
    const uint32_t seen = wakes_.load(std::memory_order_acquire);
    if (is_aborted()) {
      const Held held(lock_);
      return abort_status_;
    }
    if (is_met()) [[likely]]
      return {};
    if (waiting_ == Waiting::refuse) {
      has_refused_ = true;
      return Status(StatusCode::not_ready, "launches are still to be submitted");
    }
    waiters_.fetch_add(1, std::memory_order_seq_cst);  // as in wake_all
    sleep_on(wakes_, seen);
    waiters_.fetch_sub(1, std::memory_order_relaxed);  // only a count
  }
}

std::vector<size_t> Relations::unmet_launches() {
  const Held held(lock_);
  std::vector<size_t> found;
  for (size_t node = 0; node < required_.size(); ++node)
    if (is_unmet(node)) found.push_back(node);
  return found;
}

void Relations::override_counts_for_test(uint64_t epoch, uint64_t generation) {
  const Held held(lock_);
  epoch_ = epoch;
  std::ranges::fill(submitted_, generation);
  std::ranges::fill(freed_, generation);
  std::ranges::fill(required_, generation);
}

}  // namespace grainline
