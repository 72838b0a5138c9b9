#include "copy_graph.h"

#include <algorithm>
#include <cstring>

#include "memory/span_allocator.h"
#include "packed_program.h"

namespace grainline::test {
namespace {

constexpr size_t kMostReads = 3;
constexpr size_t kWordBytes = sizeof(uint64_t);
constexpr size_t kChainExtraBytes = 128;  // of an H2D chain: rounding and header
constexpr int64_t kNone = -1;

// args: addresses of what is read, of what is written; then seed, words written, words of each.
// A block is one word. scratch is the home's own, or null.
template <size_t reads>
int32_t fold_kernel(const uint64_t* args, int64_t begin, int64_t end, void* scratch) {
  const uint64_t* numbers = args + reads + 1;
  uint64_t hash = 0;
  for (size_t i = 0; i < reads; ++i)
    hash = mixed(hash, hash_of(reinterpret_cast<const uint64_t*>(args[i]), numbers[2 + i]));
  if (scratch != nullptr) {
    std::memcpy(scratch, &hash, sizeof hash);
    std::memcpy(&hash, scratch, sizeof hash);
  }
  auto* target = reinterpret_cast<uint64_t*>(args[reads]);
  for (int64_t i = begin; i < end; ++i)
    target[i] = word_of(numbers[0], static_cast<size_t>(i), hash);
  return 0;
}

const std::vector<TileKernel> kFolds = {fold_kernel<1>, fold_kernel<2>, fold_kernel<3>};

enum class Place { input, object, device };

struct Tensor {
  Place place;
  int64_t slot;
  std::vector<uint64_t> contents;
  std::vector<int64_t> made;   // nodes behind which the contents may be used, in stream order
  std::vector<int64_t> users;  // nodes that its Free waits for
  int64_t allocation = kNone;
  size_t pages = 0;
};

class Generator {
 public:
  Generator(uint64_t seed, Copies copies) : random_(seed), copies_(copies) {
    tables().strings = {"stress"};
    graph_.kernels = kFolds;
    add({"InferShape"});
    for (size_t i = 1 + random_() % 4; i-- > 0;) add_input();
  }

  CopyGraph graph() {
    for (size_t i = 3 + random_() % 8; i-- > 0;) {
      if (chance(0.25)) drop_some(0.3);
      if (chance(0.25))
        call_host();
      else
        launch();
      if (chance(0.2)) return_one();
    }
    while (graph_.outputs.empty()) launch(), return_one();
    drop_some(1.0);
    tables().groups = {{0, 0, 0, 0, 0, static_cast<int64_t>(graph_.launches), 0, 0, 0, 0}};
    return std::move(graph_);
  }

 private:
  Program& tables() { return graph_.tables; }
  bool is_fused() { return copies_ == Copies::fused || (copies_ == Copies::mixed && chance(0.5)); }
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }

  int64_t value(int64_t number) {
    const auto [at, is_new] =
        values_.emplace(number, static_cast<int64_t>(tables().constants.size()));
    if (is_new) tables().constants.push_back(number);
    return at->second;
  }
  int64_t slot(SlotKind kind, bool is_on_host = false) {
    tables().slots.push_back({static_cast<int64_t>(kind), -1, -1, 8, 0, is_on_host, 0});
    return static_cast<int64_t>(tables().slots.size()) - 1;
  }
  size_t some_words() {
    static constexpr size_t kSizes[] = {0, 1, 3, 5, 16, 17, 100, 1000, 9000};
    return kSizes[random_() % std::size(kSizes)];
  }

  // Everything follows InferShape; what is submitted as a launch keeps one order.
  int64_t add(CopyNode node) {
    const auto number = static_cast<int64_t>(graph_.nodes.size());
    const bool is_launch = section_of(node.kernel) == "launch";
    if (is_launch && last_launch_ >= 0) node.before.insert(node.before.begin(), last_launch_);
    if (node.before.empty() && number > 0) node.before = {0};
    if (is_launch) last_launch_ = number;
    graph_.nodes.push_back(std::move(node));
    return number;
  }

  void take_pages(Tensor& tensor, size_t bytes) {
    tensor.pages = bytes / SpanAllocator::kPageBytes + 1;
    live_pages_ += tensor.pages;
    graph_.peak_bytes = std::max(graph_.peak_bytes, live_pages_ * SpanAllocator::kPageBytes);
  }

  void add_input() {
    Tensor input{Place::input, slot(SlotKind::input), {}, {}, {}};
    for (size_t i = some_words(); i-- > 0;) input.contents.push_back(random_());
    tables().inputs.push_back({0, input.slot, -1, 0, -1, 0});
    graph_.inputs.push_back(input.contents);
    live_.push_back(std::move(input));
  }

  // ---- copies -----------------------------------------------------------------------------------

  int64_t copy_row(const Tensor& source, const Tensor& copy) {
    const auto position = static_cast<int64_t>(tables().positions.size());
    const auto bytes = static_cast<int64_t>(source.contents.size() * kWordBytes);
    tables().tensor_copies.push_back({source.slot, copy.slot, value(bytes), position, position});
    return static_cast<int64_t>(tables().tensor_copies.size()) - 1;
  }

  Tensor copied(Tensor& source) {
    Tensor copy{Place::device, slot(SlotKind::memory), source.contents, {}, {}};
    const int64_t row = copy_row(source, copy);
    if (!source.contents.empty())
      take_pages(copy, source.contents.size() * kWordBytes + kChainExtraBytes);
    if (is_fused()) {
      const char* kernel = source.place == Place::object ? "MakeSureTensorAtDevice" : "CopyH2D";
      copy.allocation = add({kernel, row, row + 1, 0, source.made});
      copy.made = {copy.allocation};
      source.users.push_back(copy.allocation);
      return copy;
    }
    const int64_t calc = add({"CalcDeviceCopySizes", row, 0, 0, source.made});
    const int64_t allocation = add({"AllocMemHbm", row, 0, 0, {calc}});
    copy.allocation = add({"ShareH2DCopyResult", row, 0, 0, {allocation}});
    const int64_t submission = add({"LaunchH2DCopy", row, 0, 0, {copy.allocation}});
    copy.made = {copy.allocation, submission};
    copy.users = {submission};
    for (const int64_t part : {calc, copy.allocation, submission}) source.users.push_back(part);
    return copy;
  }

  // The reads of a launch that come from the host and go no other way, with their positions.
  std::vector<Tensor> copied_in_a_flow(const std::vector<Tensor*>& reads, int64_t launch_row) {
    std::vector<Tensor> copies;
    CopyFlowRow flow{launch_row, static_cast<int64_t>(tables().tensor_copies.size()), 0};
    std::vector<int64_t> sources;
    for (size_t i = 0; i < reads.size(); ++i) {
      if (reads[i]->place == Place::device) continue;
      Tensor copy{Place::device, slot(SlotKind::memory), reads[i]->contents, {}, {}};
      const auto row = static_cast<size_t>(copy_row(*reads[i], copy));
      tables().positions.push_back(static_cast<int64_t>(i));
      ++tables().tensor_copies[row].position_end;
      sources.insert(sources.end(), reads[i]->made.begin(), reads[i]->made.end());
      take_pages(copy, copy.contents.size() * kWordBytes);
      copies.push_back(std::move(copy));
    }
    flow.tensor_end = static_cast<int64_t>(tables().tensor_copies.size());
    tables().copy_flows.push_back(flow);
    const auto number = static_cast<int64_t>(tables().copy_flows.size()) - 1;
    submit_flow(number, sources, reads, copies);
    return copies;
  }

  void submit_flow(int64_t flow, const std::vector<int64_t>& sources,
                   const std::vector<Tensor*>& reads, std::vector<Tensor>& copies) {
    std::vector<int64_t> parts;
    if (is_fused()) {
      parts = {add({"CopyFlowLaunch", flow, 0, 0, sources})};
    } else {
      const int64_t calc = add({"CalcCopyFlowAllocSizes", flow, 0, 0, sources});
      const int64_t allocation = add({"AllocCopyFlowHbm", flow, 0, 0, {calc}});
      const int64_t prepared = add({"PrepareCopyFlowResult", flow, 0, 0, {allocation}});
      parts = {calc, prepared, add({"LaunchCopyFlowH2D", flow, 0, 0, {prepared}})};
    }
    const bool is_chain = parts.size() > 1;
    for (Tensor& copy : copies) {
      copy.allocation = is_chain ? parts[1] : parts[0];
      copy.made = is_chain ? std::vector{parts[1], parts[2]} : parts;
      if (is_chain) copy.users = {parts[2]};
    }
    for (Tensor* source : reads)
      if (source->place != Place::device)
        source->users.insert(source->users.end(), parts.begin(), parts.end());
  }

  // ---- operators --------------------------------------------------------------------------------

  void launch() {
    const size_t count = std::min(1 + random_() % kMostReads, live_.size());
    std::ranges::shuffle(live_, random_);
    std::vector<Tensor*> reads;
    for (size_t i = 0; i < count; ++i) reads.push_back(&live_[i]);
    const auto row = static_cast<int64_t>(graph_.launches++);
    std::vector<Tensor> added;
    added.reserve(2 * kMostReads);
    const bool is_host_read =
        std::ranges::any_of(reads, [](Tensor* t) { return t->place != Place::device; });
    const bool has_flow = is_host_read && chance(0.5);
    std::vector<Tensor> passing = has_flow ? copied_in_a_flow(reads, row) : std::vector<Tensor>();
    size_t next = 0;
    for (Tensor*& read : reads) {
      if (read->place == Place::device) continue;
      if (!has_flow) added.push_back(copied(*read));
      read = has_flow ? &passing[next++] : &added.back();
    }
    run_launch(row, has_flow, reads, added);
    for (Tensor& tensor : passing) free(tensor);
    for (Tensor& tensor : added) live_.push_back(std::move(tensor));
  }

  void run_launch(int64_t row, bool has_flow, const std::vector<Tensor*>& reads,
                  std::vector<Tensor>& added) {
    const auto is_own = [&](Tensor* t) { return !t->contents.empty() && t->pages > 0; };
    const bool is_in_place = !has_flow && is_own(reads[0]) && chance(0.2);
    Tensor made{Place::device, kNone, {}, {}, {}};
    const size_t words = is_in_place ? reads[0]->contents.size() : 1 + some_words();
    if (!is_in_place) {
      made.slot = slot(SlotKind::memory);
      take_pages(made, words * kWordBytes);
      const auto bytes = static_cast<int64_t>(words * kWordBytes);
      made.allocation = add({"AllocMemory", made.slot, value(bytes)});
    }
    Tensor& target = is_in_place ? *reads[0] : made;
    Tensor scratch{Place::device, kNone, {}, {}, {}};
    if (chance(0.3)) scratch = workspace(row);
    const uint64_t seed = random_();
    describe(row, has_flow, reads, target, seed, words, !is_in_place, scratch.slot != kNone);
    submit_launch(row, reads, target, scratch);
    std::vector<std::vector<uint64_t>> contents;
    for (const Tensor* read : reads) contents.push_back(read->contents);
    target.contents = folded(seed, words, contents);
    if (!is_in_place) added.push_back(std::move(made));
  }

  Tensor workspace(int64_t row) {
    Tensor scratch{Place::device, slot(SlotKind::workspace), {}, {}, {}};
    take_pages(scratch, size_t{64} * 256);
    scratch.allocation = add({"AllocWorkspace", scratch.slot, row});
    return scratch;
  }

  void describe(int64_t row, bool has_flow, const std::vector<Tensor*>& reads, const Tensor& target,
                uint64_t seed, size_t words, bool may_split, bool has_scratch) {
    Program& p = tables();
    const auto first_view = static_cast<int64_t>(p.views.size());
    const auto first_word = static_cast<int64_t>(p.words.size());
    for (const Tensor* read : reads) p.views.push_back({read->slot, value(0)});
    p.views.push_back({target.slot, value(0)});
    p.words.push_back(value(static_cast<int64_t>(seed)));
    p.words.push_back(value(static_cast<int64_t>(words)));
    for (const Tensor* read : reads)
      p.words.push_back(value(static_cast<int64_t>(read->contents.size())));
    const auto end = static_cast<int64_t>(p.words.size());
    const int64_t cost_ps = may_split && chance(0.3) ? 1'000'000'000 : 0;  // worth several homes
    p.variants.push_back({static_cast<int64_t>(reads.size()) - 1,
                          value(static_cast<int64_t>(words)), value(cost_ps),
                          value(has_scratch ? 64 : 0), value(0), value(0), end, end});
    p.launches.push_back({row, row + 1, first_word, end, first_view,
                          static_cast<int64_t>(p.views.size()), 0, -1,
                          has_flow ? static_cast<int64_t>(p.copy_flows.size()) - 1 : kNone, kNone});
    p.group_launches.push_back(row);
  }

  void submit_launch(int64_t row, const std::vector<Tensor*>& reads, Tensor& target,
                     Tensor& scratch) {
    CopyNode node{"Launch", row};
    for (const Tensor* read : reads)
      node.before.insert(node.before.end(), read->made.begin(), read->made.end());
    if (target.allocation >= 0) node.before.push_back(target.allocation);
    node.before.insert(node.before.end(), target.users.begin(), target.users.end());
    if (scratch.allocation >= 0) node.before.push_back(scratch.allocation);
    const int64_t launched = add(std::move(node));
    for (Tensor* read : reads) read->users.push_back(launched);
    target.users.push_back(launched);
    target.made.push_back(launched);
    scratch.users.push_back(launched);
    if (scratch.slot != kNone) free(scratch);
  }

  // Reads copies of what lies on the device; its result is memory of the host that goes when the
  // last copy was submitted.
  void call_host() {
    std::vector<Tensor> arguments;
    std::vector<std::vector<uint64_t>> contents;
    for (Tensor& tensor : live_)
      if (tensor.place == Place::device && arguments.size() < 2)
        arguments.push_back(brought_home(tensor)), contents.push_back(tensor.contents);
    Program& p = tables();
    const auto number = static_cast<int64_t>(p.host_calls.size());
    const auto begin = static_cast<int64_t>(p.slot_lists.size());
    CopyNode node{"HostCall", number};
    graph_.host_calls.argument_words.emplace_back();
    for (const Tensor& argument : arguments) {
      p.slot_lists.push_back(argument.slot);
      node.before.push_back(argument.allocation);
      graph_.host_calls.argument_words.back().push_back(argument.contents.size());
    }
    const auto end = static_cast<int64_t>(p.slot_lists.size());
    Tensor result{Place::object, slot(SlotKind::object), {}, {}, {}};
    p.slot_lists.push_back(result.slot);
    p.host_calls.push_back({number, begin, end, end, end + 1});
    graph_.host_calls.result_words.push_back(1 + some_words());
    result.contents =
        folded(static_cast<uint64_t>(number), graph_.host_calls.result_words.back(), contents);
    const int64_t called = add(std::move(node));
    result.made = {called};
    result.users = {called};
    for (Tensor& argument : arguments)
      add({"FreeMemory", argument.slot, 0, 0, {called, argument.allocation}});
    live_.push_back(std::move(result));
  }

  Tensor brought_home(Tensor& tensor) {
    Tensor copy{Place::device, slot(SlotKind::memory, true), tensor.contents, {}, {}};
    const auto bytes = static_cast<int64_t>(tensor.contents.size() * kWordBytes);
    copy.allocation = add({"CopyD2H", tensor.slot, copy.slot, value(bytes), tensor.made});
    tensor.users.push_back(copy.allocation);
    tensor.made.push_back(copy.allocation);  // before launches in place
    return copy;
  }

  void return_one() {
    const auto found = std::ranges::find_if(
        live_, [](const Tensor& t) { return t.place == Place::device && !t.contents.empty(); });
    if (found == live_.end()) return;
    const int64_t output = slot(SlotKind::output);
    const int64_t size = value(static_cast<int64_t>(found->contents.size() * kWordBytes));
    const auto number = static_cast<int64_t>(tables().outputs.size());
    tables().outputs.push_back({0, output, 0});
    graph_.outputs.push_back(found->contents);
    CopyNode node{"EnsureTensorAtOutMemory", found->slot, output, size, found->made};
    node.before.push_back(add({"AllocModelOutput", output, number, size}));
    found->users.push_back(add(std::move(node)));
    found->made.push_back(found->users.back());  // as in brought_home
  }

  void drop_some(double p) {
    std::vector<Tensor> kept;
    for (Tensor& tensor : live_)
      if (tensor.place == Place::input || !chance(p))
        kept.push_back(std::move(tensor));
      else
        free(tensor);
    live_ = std::move(kept);
  }

  void free(const Tensor& tensor) {
    if (tensor.place == Place::object) {
      add({"FreeMemory", tensor.slot, 1, 0, tensor.users});
      return;
    }
    CopyNode node{"FreeMemory", tensor.slot, 0, 0, tensor.users};
    for (const int64_t user : tensor.users)
      if (section_of(graph_.nodes[static_cast<size_t>(user)].kernel) == "launch")
        node.related.push_back(user);
    node.before.push_back(tensor.allocation);
    live_pages_ -= tensor.pages;
    add(std::move(node));
  }

  std::mt19937_64 random_;
  const Copies copies_;
  CopyGraph graph_;
  std::map<int64_t, int64_t> values_;
  std::vector<Tensor> live_;
  size_t live_pages_ = 0;
  int64_t last_launch_ = -1;
};

}  // namespace

CopyGraph random_copy_graph(uint64_t seed, Copies copies) {
  return Generator(seed, copies).graph();
}

std::shared_ptr<Program> program_of_copies(const CopyGraph& graph, const std::vector<size_t>& order,
                                           bool has_relations, Status* status) {
  Program tables = graph.tables;
  std::vector<int64_t> place(order.size());
  for (size_t at = 0; at < order.size(); ++at) place[order[at]] = static_cast<int64_t>(at);
  std::vector<std::vector<int64_t>> before, relations;
  const bool has_streams =
      std::ranges::any_of(graph.nodes, [](const CopyNode& node) { return node.stream != 0; });
  for (const size_t index : order) {
    const CopyNode& node = graph.nodes[index];
    const bool is_ahead = has_relations && !node.related.empty();
    const std::string_view kernel = is_ahead ? "FreeMemoryHoldAddr" : node.kernel;
    const std::string_view section = section_of(kernel);
    const auto worker = static_cast<int64_t>(section == "memory"   ? WorkerClass::memory
                                             : section == "launch" ? WorkerClass::launch
                                                                   : WorkerClass::normal);
    tables.node_rows.push_back({kernel_number(kernel), node.a, node.b, node.c, node.d, 0, 0, 0});
    tables.node_workers.push_back({worker, worker});
    if (has_streams) tables.node_streams.push_back(node.stream);
    before.emplace_back(), relations.emplace_back();
    for (const int64_t other : node.before) {
      const bool is_related = is_ahead && std::ranges::count(node.related, other) > 0;
      (is_related ? relations : before).back().push_back(place[static_cast<size_t>(other)]);
    }
    std::ranges::sort(relations.back());
    const auto repeated = std::ranges::unique(relations.back());
    relations.back().erase(repeated.begin(), repeated.end());
  }
  for (const FrameRow& frame : graph.frames) {
    const int64_t begin = place[static_cast<size_t>(frame.begin)];
    tables.frames.push_back({begin, begin + frame.end - frame.begin});
  }
  tables.watchers = reversed(rows_of(before), order.size());
  tables.relations = rows_of(relations);
  return packed_program(tables, graph.kernels, status);
}

uint64_t hash_of(const uint64_t* words, size_t count) {
  uint64_t hash = count;
  for (size_t i = 0; i < count; ++i) hash = mixed(hash, words[i]);
  return hash;
}

uint64_t word_of(uint64_t seed, size_t number, uint64_t hash) { return mixed(seed + number, hash); }

std::vector<uint64_t> folded(uint64_t seed, size_t words,
                             const std::vector<std::vector<uint64_t>>& contents) {
  uint64_t hash = 0;
  for (const std::vector<uint64_t>& one : contents)
    hash = mixed(hash, hash_of(one.data(), one.size()));
  std::vector<uint64_t> result(words);
  for (size_t i = 0; i < words; ++i) result[i] = word_of(seed, i, hash);
  return result;
}

}  // namespace grainline::test
