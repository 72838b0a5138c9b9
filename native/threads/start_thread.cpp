#include "threads/start_thread.h"

#include <signal.h>

#include <cstring>

namespace grainline {
namespace {

// 0, or the number of the error.
int create(void* (*main)(void*), void* argument, pthread_t* thread) noexcept {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(thread, nullptr, main, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

}  // namespace

bool start_detached_thread(void* (*main)(void*), void* argument) noexcept {
  pthread_t thread;
  if (create(main, argument, &thread) != 0) return false;
  pthread_detach(thread);
  return true;
}

Status start_thread(void* (*main)(void*), void* argument, pthread_t* thread) {
  const int error = create(main, argument, thread);
  if (error == 0) return {};
  return {StatusCode::out_of_memory,
          std::string("the system starts no further thread (") + std::strerror(error) + ")"};
}

}  // namespace grainline
