// Runs a graph of copy_graph.h again and again on one executor, with a node that fails now and
// then.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "copy_graph.h"
#include "exec/executor.h"

namespace grainline::test {

// ---- host calls ---------------------------------------------------------------------------------

using HostTensor = std::vector<uint64_t>;

inline bool call_host(void* context, RunState& state, const HostCallRow& row) {
  const auto& graph = *static_cast<const CopyGraph*>(context);
  const auto number = static_cast<size_t>(row.host_op);
  const std::vector<int64_t>& lists = state.program().slot_lists;
  std::vector<std::vector<uint64_t>> contents;
  for (int64_t i = row.argument_begin; i < row.argument_end; ++i) {
    const size_t words =
        graph.host_calls.argument_words[number][static_cast<size_t>(i - row.argument_begin)];
    const auto slot = static_cast<size_t>(lists[static_cast<size_t>(i)]);
    const auto* data = reinterpret_cast<const uint64_t*>(state.slots[slot].data);
    contents.emplace_back(data, data + words);
  }
  auto* result = new HostTensor(folded(number, graph.host_calls.result_words[number], contents));
  const auto slot = static_cast<size_t>(lists[static_cast<size_t>(row.result_begin)]);
  state.slots[slot].data = reinterpret_cast<std::byte*>(result->data());
  state.slots[slot].object = result;
  return true;
}

// A copy that reads its source too late finds nonsense, and so does a sanitizer.
inline void release_object(void* object) {
  auto* tensor = static_cast<HostTensor*>(object);
  std::ranges::fill(*tensor, ~uint64_t{0});
  delete tensor;
}

// ---- failures -----------------------------------------------------------------------------------

inline StatusCode some_failure(std::mt19937_64& random) {
  return random() % 2 ? StatusCode::end_of_sequence : StatusCode::kernel_failed;
}

// What a node does in the place of its kernel: fails when it runs for the `left`th time from now.
struct Injection {
  KernelFn kernel = nullptr;
  StatusCode code = StatusCode::ok;
  int left = 0;
};
inline Injection injection;

inline bool injected(RunState& state, const Node& node) {
  if (injection.left-- != 1) return injection.kernel(state, node);
  return state.fail(injection.code, "injected");
}

// ---- runs ---------------------------------------------------------------------------------------

inline bool has_frames(const CopyGraph& graph) {
  return std::ranges::count(graph.nodes, "BranchDone", &CopyNode::kernel) > 0;
}

// graph and device outlive it.
class CopyBench {
 public:
  CopyBench(const CopyGraph& graph, const ExecutorOptions& options, bool has_relations, Frees frees,
            Device& device)
      : graph_(graph), inputs_(graph.inputs) {
    const std::vector<size_t> order = static_order(graph.nodes, frees, graph.frames);
    program_ = program_of_copies(graph, order, has_relations, &refusal_);
    if (program_ == nullptr) return;
    executor_.emplace(program_, options, device);
    state_ = executor_->lease();
  }
  ~CopyBench() {
    if (state_ != nullptr) executor_->give_back(state_);
  }
  CopyBench(const CopyBench&) = delete;
  CopyBench& operator=(const CopyBench&) = delete;

  // internal: the program was refused, or a run that ended well returned what it must not.
  Status run() {
    if (state_ == nullptr) return Status(StatusCode::internal, std::string(refusal_.message()));
    state_->host = {const_cast<CopyGraph*>(&graph_), call_host, nullptr, release_object, nullptr};
    for (size_t i = 0; i < inputs_.size(); ++i)
      static_cast<void>(state_->bind_input(i, reinterpret_cast<std::byte*>(inputs_[i].data()),
                                           nullptr, 0, nullptr));
    Status status = executor_->run(*state_);
    for (size_t i = 0; status.is_ok() && i < graph_.outputs.size(); ++i)
      if (!is_output(i))
        status = Status(StatusCode::internal,
                        "output " + std::to_string(i) + " is not what the oracle says");
    state_->drop_outputs();
    return status;
  }
  // The node at this place fails in the next run, when it is its turn for that time; ok: it was
  // not.
  Status run_with_fault_at(size_t place, int time, StatusCode code) {
    KernelFn& kernel = program_->nodes[place].fn;
    injection = {std::exchange(kernel, injected), code, time};
    Status status = run();
    kernel = injection.kernel;
    return status;
  }
  // With one that runs them: it finds them by their numbers in the program's rows.
  void replace_kernels(KernelFn with) {
    for (Node& node : program_->nodes) node.fn = with;
  }
  void observe(Observer* observer) { state_->observer = observer; }
  void trim() { static_cast<void>(state_->trim(0)); }
  // Of the runs so far.
  size_t peak_bytes() const { return state_->recent_peak_bytes(); }
  size_t nodes() const { return program_->nodes.size(); }

 private:
  bool is_output(size_t number) const {
    const auto slot = static_cast<size_t>(program_->outputs[number].slot);
    const std::vector<uint64_t>& expected = graph_.outputs[number];
    return std::memcmp(state_->slots[slot].data, expected.data(),
                       expected.size() * sizeof(uint64_t)) == 0;
  }

  const CopyGraph& graph_;
  std::vector<std::vector<uint64_t>> inputs_;
  Status refusal_;
  std::shared_ptr<Program> program_;
  std::optional<Executor> executor_;
  RunState* state_ = nullptr;
};

}  // namespace grainline::test
