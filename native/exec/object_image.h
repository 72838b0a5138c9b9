// Machine code of the kernels in memory: a small loader of x86-64 ELF relocatable objects.
//
// The objects are our own: position-independent, small code model, every relocation inside the
// object or against a handful of C library functions. Anything else is refused, not guessed at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "base/status.h"

namespace grainline {

// Owns its mapping: addresses are valid as long as the image lives. Code is mapped read-execute,
// constants read-only; nothing is ever writable and executable at once.
class ObjectImage {
 public:
  ~ObjectImage();
  ObjectImage(const ObjectImage&) = delete;
  ObjectImage& operator=(const ObjectImage&) = delete;

  static Status load(std::span<const std::byte> object, std::unique_ptr<ObjectImage>* out);

  // 0: there is no such global symbol.
  uint64_t address(const std::string& symbol) const;
  const std::unordered_map<std::string, uint64_t>& symbols() const { return symbols_; }

 private:
  friend class ObjectLinker;
  ObjectImage() = default;

  std::byte* memory_ = nullptr;
  size_t size_bytes_ = 0;
  std::unordered_map<std::string, uint64_t> symbols_;
};

}  // namespace grainline
