// Small objects that are made and dropped all the time: chunks from the system, kept for good.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace grainline {

// Single owner. take() returns a default-made object at its first use and the object as it was
// dropped afterwards. Asks the system only when more objects are out than ever before.
template <typename T>
class ObjectPool {
 public:
  T* take() {
    if (free_.empty()) grow();
    T* object = free_.back();
    free_.pop_back();
    return object;
  }

  // Whether the object is one of this pool's, out or not.
  bool holds(const T* object) const {
    return std::ranges::any_of(chunks_, [object](const std::vector<T>& chunk) {
      return !std::less<>()(object, chunk.data()) &&
             std::less<>()(object, chunk.data() + chunk.size());
    });
  }

  // Never allocates: grow() reserved room for every object there is.
  void drop(T* object) { free_.push_back(object); }

 private:
  static constexpr size_t kFirstChunk = 32;

  void grow() {
    const size_t count = total_ == 0 ? kFirstChunk : total_ / 2;
    chunks_.emplace_back(count);
    total_ += count;
    free_.reserve(total_);
    for (size_t i = count; i-- > 0;) free_.push_back(&chunks_.back()[i]);
  }

  std::vector<std::vector<T>> chunks_;
  std::vector<T*> free_;
  size_t total_ = 0;
};

}  // namespace grainline
