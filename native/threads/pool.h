// The one process-wide pool of threads.
//
// A dispatch cuts `blocks` into C = ceil(blocks / grain) tasks; home i owns those from i C / h up
// to (i + 1) C / h, rounded down. The caller is home 0 and works; h - 1 pool threads are activated.
// Whoever finished its own tasks steals one task at a time, walking round-robin from its right
// neighbour, until a whole round finds nothing. Ranges that lie together keep a home's data in its
// caches from one launch to the next, and its prefetches off what others write.
//
// Claim protocol. Every home has a cursor: epoch of the dispatch << 32 | tasks left. A task is
// claimed by a compare-exchange that must find the claimer's epoch and a count above zero, so a
// thread that comes late finds nothing and touches nothing. The caller's first task is its own
// without a claim. The caller leaves when all tasks are settled; it never waits for a thread that
// claimed none.
//   The plain fields of an offer are read only between a successful claim and the settling of that
//   task. In this time the dispatch cannot end, so nobody writes them.
//
// Cache lines. A line that goes from one processor to another takes as long as a hundred
// instructions, so a hand-over moves two: the offer, which holds all that its home needs to begin
// and is what the home spins on, and the word in which the home says how many tasks it has done.
// What changes seldom lies apart from both. Nobody looks at a home that has nothing to steal by its
// share alone.
//
// Threads. Nothing starts before the first parallel dispatch. A pool thread spins for at most
// kHotNs after its last job, and only while a Run is active and processors are left for it;
// otherwise it sleeps. The caller wakes home 1 only, and home i wakes 2i and 2i + 1, so what the
// caller pays does not grow with h.
//
// Places. The scheduler likes to wake a thread where it slept last or near its waker, be it the
// very processor that the caller computes on: there it would stop the caller, do all the work alone
// and then spin while the caller waits for its processor. So a pool thread is forbidden the
// processor of the caller that wakes it, until another caller or another processor takes its place.
//
// A busy pool is never waited for: a concurrent or nested dispatch runs inline on its caller.
//
// fork: the child has no pool threads, a clean pool, and starts threads again when it needs them.
// (A kernel itself must not fork.) Exit: threads are detached, the pool is never destroyed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/float_environment.h"
#include "base/kernel_abi.h"
#include "threads/parking.h"
#include "threads/pool_log.h"

namespace grainline {

// Who is asked now and then whether to go on. Asked by one thread at a time.
struct Interrupt {
  bool (*is_due)(void* context) = nullptr;
  void* context = nullptr;
};

struct Dispatch {
  TileKernel fn = nullptr;
  const uint64_t* args = nullptr;
  int64_t blocks = 0;
  int64_t grain = 0;             // blocks per task; <= 0: ceil(blocks / (32 h))
  int homes = 1;                 // at most this many threads, the caller included
  std::byte* scratch = nullptr;  // home i gets scratch + i * scratch_stride: homes * stride bytes
  size_t scratch_stride = 0;
  // Asked by the caller behind every look_every blocks that it ran; then what is left is skipped.
  // Null: by nobody. Lives as long as the dispatch.
  const Interrupt* interrupt = nullptr;
  int64_t look_every = 0;
};

// Who writes and who reads what is shared:
//   busy_         callers: the lock of everything that a dispatch writes. Never waited for.
//   epoch_        the holder of busy_ alone.
//   offers_[i]    written by the holder of busy_; the cursor is counted down by everyone, the job
//                 read by thread i when it holds an unsettled claim.
//   done_[i]      written by thread i, read by the caller: epoch << 32 | tasks that it settled.
//                 Zeroed by the holder of busy_ when the epochs begin anew.
//   fault_        whoever runs tasks writes the first one; the holder of busy_ resets it.
//   slots_[i].sleeper       announced by thread i before it sleeps; cleared by whoever wakes it.
//   slots_[i].thread, avoided   written by thread i as it starts; avoided then by whoever wakes it.
//   caller_processor_  written by the holder of busy_, read by wakers. A hint.
//   active_runs_  RunScopes add and subtract; everyone reads.
//   never_spins_  an option; everyone reads.
class Pool {
 public:
  static constexpr int kMaxHomes = 256;
  static constexpr int64_t kHotNs = 70'000;
  static constexpr int64_t kMaxTasks = int64_t{1} << 31;  // the grain grows beyond that

  constexpr Pool() noexcept = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  static Pool& process() noexcept;

  // Runs every block exactly once. 0, or the first nonzero return value of a kernel, or
  // KernelFault::interrupted; then tasks that had not begun are skipped. Never throws, never waits
  // for another dispatch.
  int32_t dispatch(const Dispatch& d) noexcept {
    if (d.homes <= 1 || d.blocks <= d.grain) [[likely]]
      return run_whole(d);
    return dispatch_parallel(d);
  }

  // Homes that a dispatch by a thread inside a run may use now: processors allowed, less the other
  // active runs, within the thread limit.
  int homes_allowed() noexcept;
  // Is the first pool thread awake? Then a dispatch costs nanoseconds, not a wake-up.
  bool pool_threads_hot() const noexcept;
  // Wakes the threads of `homes` homes; for the start of a run that holds a launch worth it.
  // Nothing where threads do not stay hot.
  void warm(int homes) noexcept;

  // With false, threads sleep on a condition variable whenever they have nothing to do, inside a
  // run too: every dispatch wakes them. For comparison, and where no thread may spin.
  void keep_threads_hot(bool is_wanted) noexcept { never_spins_.store(!is_wanted, relaxed); }
  bool keeps_threads_hot() const noexcept { return !never_spins_.load(relaxed); }

  // Process-wide upper limit of homes; 0: as many as processors are allowed.
  void set_thread_limit(int limit) noexcept;
  // Processors this process may use; read from the system at the first call and after a fork.
  int processors() noexcept;

  // Pretend to have this many processors when homes are counted; 0 ends it. Threads beyond the
  // real ones never spin.
  void override_processors_for_test(int processors) noexcept;
  // The next dispatch gets this epoch; not during one. Returns which it would have got.
  uint32_t override_epoch_for_test(uint32_t next) noexcept {
    return std::exchange(epoch_, next - 1) + 1;
  }
  int threads_started() const noexcept { return started_.load(std::memory_order_relaxed); }
  PoolLog& log() noexcept { return log_; }
  int active_runs() const noexcept { return active_runs_.load(std::memory_order_relaxed); }

 private:
  static constexpr auto relaxed = std::memory_order_relaxed;
  friend class RunScope;

  struct Job {
    TileKernel fn = nullptr;
    const uint64_t* args = nullptr;
    int64_t blocks = 0;
    int64_t grain = 0;
    std::byte* scratch = nullptr;         // of this home
    const Dispatch* in_pieces = nullptr;  // the caller's, where it can be interrupted
  };
  struct alignas(64) Offer {
    std::atomic<uint64_t> cursor{0};  // epoch << 32 | tasks left
    std::atomic<uint64_t> cut{0};     // tasks << 32 | homes
    Job job;
  };
  static_assert(sizeof(Offer) == 64);
  struct alignas(64) Done {
    std::atomic<uint64_t> word{0};
  };
  struct alignas(64) Slot {
    Sleeper sleeper;
    std::atomic<int> thread{0};    // of the system; known before it first sleeps
    std::atomic<int> avoided{-1};  // the processor that it is forbidden
  };

  int32_t run_whole(const Dispatch& d) noexcept {
    if (d.interrupt != nullptr) [[unlikely]]
      return run_pieces(d, 0, d.blocks, d.scratch, true);
    return d.blocks > 0 ? d.fn(d.args, 0, d.blocks, d.scratch) : 0;
  }
  int32_t run_pieces(const Dispatch& d, int64_t begin, int64_t end, void* scratch,
                     bool is_caller) noexcept;
  static void* thread_main(void* home);
  static void after_fork_in_child();
  void set_fork_hook() noexcept;

  int32_t dispatch_parallel(const Dispatch& d) noexcept;
  bool try_lock() noexcept;
  void unlock() noexcept;
  int start_threads(int homes) noexcept;
  uint32_t publish(const Job& job, size_t scratch_stride, uint64_t cut) noexcept;

  int64_t work(int home, uint32_t epoch, uint64_t cut) noexcept;
  int64_t work_logged(int home, uint32_t epoch, uint64_t cut) noexcept;
  uint32_t claim(int owner, uint32_t epoch) noexcept;
  uint32_t claim_rest(int owner, uint32_t epoch) noexcept;
  uint32_t run_task(int home, int owner, uint32_t left, uint32_t epoch) noexcept;
  void settle(int home, uint32_t epoch, uint32_t count) noexcept;
  bool have_settled(uint32_t epoch, int homes, uint32_t count) const noexcept;
  void await_settled(uint32_t epoch, int homes, uint32_t count) noexcept;

  [[noreturn]] void serve(int home) noexcept;
  uint32_t await_offer(int home, uint32_t seen, int64_t hot_until_ns) noexcept;
  uint32_t park(int home, uint32_t seen) noexcept;
  void wake(int home) noexcept;
  void keep_off_the_caller(int home) noexcept;
  bool may_spin(int home) const noexcept;
  bool has_processor_for_all() const noexcept;

  alignas(64) std::atomic<uint32_t> busy_{0};
  uint32_t epoch_ = 0;
  std::atomic<int> started_{0};
  // Read by all who work, written seldom.
  alignas(64) std::atomic<int32_t> fault_{0};
  std::atomic<uint32_t> caller_parked_{0};
  std::atomic<int> caller_processor_{-1};
  alignas(64) std::atomic<int> active_runs_{0};
  std::atomic<int> processors_{0};
  std::atomic<int> processors_override_{0};
  std::atomic<int> thread_limit_{0};
  std::atomic<bool> never_spins_{false};
  std::atomic<bool> has_fork_hook_{false};
  PoolLog log_;
  Offer offers_[kMaxHomes];
  Done done_[kMaxHomes];
  Slot slots_[kMaxHomes];
};

// Every thread that computes inside a run holds one; while any exists, pool threads may stay hot.
// It also gives the thread the default floating-point environment, which pool threads have, so that
// no bit depends on who runs a task.
class RunScope {
 public:
  RunScope() noexcept;
  ~RunScope();
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  DefaultFloatScope float_scope_;
};

}  // namespace grainline
