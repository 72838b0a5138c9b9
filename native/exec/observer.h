// What a run tells to whoever watches it. Without an observer a run does none of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace grainline {

enum class EventKind : int8_t {
  node_started,
  node_ended,
  node_failed,
  node_parked,   // the allocation of the node waits for launches; others go on
  node_resumed,  // it is tried again
};

// node: execution id. worker: 0 is the caller. live_bytes: of the run's memory blocks at this
// moment; only nodes of the memory section change it.
struct RunEvent {
  EventKind kind;
  int worker;
  size_t node;
  size_t live_bytes;
};

class Observer {
 public:
  // On the worker's thread, in the order of that worker; several workers call at once. Must not
  // throw.
  virtual void on_event(const RunEvent& event) = 0;

 protected:
  ~Observer() = default;
};

struct NodeTime {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int worker = 0;
  int64_t taken_bytes = 0;  // live bytes at the end less those at the begin
};

// When each node ran last. Every node is written by the worker that runs it; what it submits names
// the node as its cause.
class NodeTimes final : public Observer {
 public:
  explicit NodeTimes(size_t nodes) : times_(nodes) {}
  void on_event(const RunEvent& event) override;
  const std::vector<NodeTime>& times() const { return times_; }

 private:
  std::vector<NodeTime> times_;
};

// The newest events of a run in one order: an event that another one waited for stands before it.
class EventLog final : public Observer {
 public:
  struct Entry {
    int64_t time_ns;
    int64_t node;
    int32_t worker;
    EventKind kind;
  };

  explicit EventLog(size_t capacity) : entries_(capacity) {}
  void on_event(const RunEvent& event) override;

  // When nobody writes: the entries that are left, oldest first, and how many were overwritten.
  std::vector<Entry> entries() const;
  size_t lost() const;
  void clear() { count_.store(0, std::memory_order_relaxed); }  // nobody writes

 private:
  std::vector<Entry> entries_;
  // Taking a number is what orders events. Sequential: an event that happens before another one
  // gets the smaller number. Each entry has one writer, as long as the ring is not lapped within
  // the time of one write.
  std::atomic<size_t> count_{0};
};

}  // namespace grainline
