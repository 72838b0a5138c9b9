#include "exec/relations.h"

#include <algorithm>

namespace grainline {
namespace {

using Held = std::lock_guard<std::mutex>;

template <typename Row>
size_t bytes_of(const std::vector<Row>& rows) {
  return rows.capacity() * sizeof(Row);
}

}  // namespace

Status Relations::prepare(const IdRows& rows, size_t nodes) {
  if (Status status = check_rows(rows, nodes, "relations"); !status.is_ok()) return status;
  const size_t states = rows.offsets.empty() ? 0 : nodes;
  runs_ = std::vector<Count>(states);
  required_ = std::vector<uint64_t>(states);
  chain_ = std::vector<uint64_t>(states);
  chain_begin_ = kEnd;
  roles_ = std::vector<uint8_t>(states);
  for (size_t node = 0; node < states; ++node)
    if (!rows.row(node).empty()) roles_[node] = kFree;
  for (const int64_t launch : rows.ids) roles_[static_cast<size_t>(launch)] |= kLaunch;
  rows_ = &rows;
  return {};
}

size_t Relations::memory_bytes() const {
  const size_t rows = rows_ == nullptr ? 0 : bytes_of(rows_->offsets) + bytes_of(rows_->ids);
  return rows + bytes_of(runs_) + bytes_of(required_) + bytes_of(chain_) + bytes_of(roles_);
}

Status Relations::begin_epoch() {
  // Relaxed: published by whatever starts the threads of the run.
  for (Count& runs : runs_) runs.store(0, std::memory_order_relaxed);
  std::ranges::fill(required_, uint64_t{0});
  std::ranges::fill(chain_, kUnchained);
  chain_begin_ = kEnd;
  has_refused_ = false;
  abort_status_ = Status();
  aborted_.store(false, std::memory_order_relaxed);
  if (epoch_ != UINT64_MAX) {
    ++epoch_;
    return {};
  }
  Status exhausted(StatusCode::internal, "the epochs of the relations are exhausted");
  abort(exhausted);
  return exhausted;
}

bool Relations::record_related(size_t node) {
  // Relaxed: what an abort does not forbid yet may still be recorded.
  if (aborted_.load(std::memory_order_relaxed)) [[unlikely]]
    return false;
  const uint64_t generation = runs_[node].load(std::memory_order_relaxed) + 1;  // its own count
  if (generation == 0) [[unlikely]] {
    abort(Status(StatusCode::internal, "the generations of a node are exhausted"));
    return false;
  }
  if (roles_[node] & kFree)
    for (const int64_t launch : rows_->row(node)) require(static_cast<size_t>(launch), generation);
  // Release: pairs with is_unmet.
  runs_[node].store(generation, std::memory_order_release);
  return true;
}

void Relations::require(size_t launch, uint64_t generation) {
  if (required_[launch] >= generation) return;
  required_[launch] = generation;
  if (chain_[launch] != kUnchained || !is_unmet(launch)) return;
  chain_[launch] = chain_begin_;
  chain_begin_ = launch + 1;
}

bool Relations::is_met() noexcept {
  while (chain_begin_ != kEnd) {
    const size_t launch = chain_begin_ - 1;
    if (is_unmet(launch)) return false;
    chain_begin_ = std::exchange(chain_[launch], kUnchained);
  }
  return true;
}

void Relations::abort(Status status) {
  const Held held(lock_);
  if (aborted_.load(std::memory_order_relaxed)) return;  // written under the lock that is held
  abort_status_ = std::move(status);
  aborted_.store(true, std::memory_order_release);
}

Status Relations::wait() {
  if (aborted_.load(std::memory_order_acquire)) [[unlikely]]
    return abort_status_;  // written once in an epoch, before the flag
  if (is_met()) [[likely]]
    return {};
  has_refused_ = true;
  return Status(StatusCode::not_ready, "launches are still to be submitted");
}

std::vector<size_t> Relations::unmet_launches() const {
  std::vector<size_t> found;
  for (size_t node = 0; node < required_.size(); ++node)
    if (is_unmet(node)) found.push_back(node);
  return found;
}

void Relations::override_counts_for_test(uint64_t epoch, uint64_t generation) {
  epoch_ = epoch;
  for (Count& runs : runs_) runs.store(generation, std::memory_order_relaxed);
  std::ranges::fill(required_, generation);
}

}  // namespace grainline
