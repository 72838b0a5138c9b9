// Threads of ours. Starting one may fail like an allocation: the system has limits of threads and
// of memory.
//
// All signals are blocked in the new thread: they are the business of the program's own threads.
#pragma once

#include <pthread.h>

#include <memory>
#include <utility>

#include "base/status.h"

namespace grainline {

// A thread that nobody joins. False: the system starts none now.
[[nodiscard]] bool start_detached_thread(void* (*main)(void*), void* argument) noexcept;

// As above, but *thread is to be joined. out_of_memory: the system starts none now.
Status start_thread(void* (*main)(void*), void* argument, pthread_t* thread);

// Runs body() in a thread that is to be joined; the thread owns the body.
template <typename Body>
Status start_thread(Body body, pthread_t* thread) {
  auto owned = std::make_unique<Body>(std::move(body));
  const auto main = [](void* argument) -> void* {
    const std::unique_ptr<Body> own(static_cast<Body*>(argument));
    (*own)();
    return nullptr;
  };
  Status status = start_thread(main, owned.get(), thread);
  if (status.is_ok()) static_cast<void>(owned.release());
  return status;
}

}  // namespace grainline
