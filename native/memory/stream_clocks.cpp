#include "memory/stream_clocks.h"

#include <algorithm>

namespace grainline {
namespace {

void learn(StreamClocks::Snapshot& known, const StreamClocks::Snapshot& news) {
  for (size_t i = 0; i < news.size(); ++i) known[i] = std::max(known[i], news[i]);
}

}  // namespace

int StreamClocks::add_stream() {
  now_.push_back(1);
  host_.push_back(0);
  known_.push_back(host_);
  for (Snapshot& known : known_) known.resize(now_.size());
  return streams() - 1;
}

void StreamClocks::send(int stream, Snapshot* snapshot) {
  const auto index = static_cast<size_t>(stream);
  *snapshot = known_[index];
  (*snapshot)[index] = now_[index]++;
}

void StreamClocks::receive(int stream, const Snapshot& snapshot) {
  learn(known_[static_cast<size_t>(stream)], snapshot);
}

void StreamClocks::receive_everywhere(const Snapshot& snapshot) {
  learn(host_, snapshot);
  for (Snapshot& known : known_) learn(known, snapshot);
}

}  // namespace grainline
