// Which work is over, as each stream may know it. (Vector clocks: Fidge 1988, Mattern 1989.)
//
// Work is stamped with its stream's time when it is submitted. An event carries what its stream
// knows; whoever waits for the event learns it. Work of stream t stamped `time` is over for all
// that stream s submits from now on  <=>  s == t or known(s, t) >= time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace grainline {

// Not thread-safe. Streams are numbered from 0; the host is one more party that can learn.
class StreamClocks {
 public:
  using Snapshot = std::vector<uint64_t>;  // by stream; empty: knows nothing

  explicit StreamClocks(int streams = 0) {
    while (this->streams() < streams) add_stream();
  }
  // Returns its number.
  int add_stream();
  int streams() const noexcept { return static_cast<int>(now_.size()); }

  // The stamp of what the stream submits now.
  uint64_t now(int stream) const { return now_[static_cast<size_t>(stream)]; }
  // What waiting for the stream's work up to now teaches. Takes memory only where the snapshot has
  // less room than there are streams.
  void send(int stream, Snapshot* snapshot);
  void receive(int stream, const Snapshot& snapshot);
  // The host has waited: all streams know it, because they submit after that.
  void receive_everywhere(const Snapshot& snapshot);

  bool is_over(int stream, int worker, uint64_t time) const {
    return stream == worker ||
           known_[static_cast<size_t>(stream)][static_cast<size_t>(worker)] >= time;
  }
  bool is_over_for_host(int worker, uint64_t time) const {
    return host_[static_cast<size_t>(worker)] >= time;
  }

 private:
  std::vector<uint64_t> now_;
  std::vector<Snapshot> known_;
  Snapshot host_;
};

}  // namespace grainline
