#include "flow_graph.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "flow_meaning.h"

namespace grainline::test {
namespace {

constexpr size_t kWordBytes = sizeof(uint64_t);
constexpr size_t kConstants = 4096;  // the values behind them are instructions
constexpr size_t kMostReads = 3;
constexpr int kMostDepth = 3;
constexpr uint64_t kAnyWord = ~uint64_t{0}, kSmallWord = 3;
constexpr int64_t kNone = -1;

// ---- graphs -------------------------------------------------------------------------------------

struct Tensor {
  int64_t slot;
  size_t words;
  size_t level;                // that frees it
  int64_t word_count = kNone;  // the value, where only the run knows it
};

struct Use {
  int64_t writer = kNone;
  std::vector<int64_t> readers, all;
};

// A frame whose nodes are being made.
struct Level {
  int64_t entry;        // what its nodes wait for
  int64_t outer_entry;  // what waits for nodes around it
  int64_t turn;         // value
  size_t group;         // of the innermost loop around
  Script* script;
  int64_t last_infer = entry;  // extents become known in one order
  std::vector<int64_t> nodes = {};
  std::map<int64_t, Use> uses = {};
  std::map<int64_t, bool> outer_uses = {};  // slot -> is written
};

class Generator {
 public:
  Generator(uint64_t seed, bool keeps_reads)
      : random_(seed), keeps_reads_(keeps_reads), is_split_(chance(0.3)) {
    p().strings = {"stress"};
    p().constants.reserve(kConstants);
    groups_.emplace_back();
    levels_.push_back({0, kNone, value(0), 0, &script_});
    add({"InferShape"});
    for (size_t i = 1 + random_() % 3; i-- > 0;) add_input();
  }

  CopyGraph graph() {
    operators(3 + random_() % 4);
    add_flow();
    operators(1 + random_() % 3);
    for (size_t i = 1 + random_() % 3; i-- > 0;) return_one();
    for (const Tensor& tensor : live_) free(tensor.slot);
    perform(script_, meaning_);
    for (const OutputRow& output : p().outputs)
      graph_.outputs.push_back(meaning_.contents[output.slot]);
    CHECK(p().constants.size() <= kConstants, "there is room for the constants");
    p().constants.resize(kConstants);
    graph_.kernels = {fold_turn<1>, fold_turn<2>, fold_turn<3>};
    for (Group& group : groups_) finish(group);
    p().groups = groups_;
    return std::move(graph_);
  }

 private:
  Program& p() { return graph_.tables; }
  Level& here() { return levels_.back(); }
  bool chance(double odds) { return std::uniform_real_distribution<>(0, 1)(random_) < odds; }
  size_t some_words() {
    static constexpr size_t kSizes[] = {1, 3, 16, 100, 9000};
    return kSizes[random_() % std::size(kSizes)];
  }
  int64_t value(int64_t number) {
    const auto [at, is_new] = values_.emplace(number, static_cast<int64_t>(p().constants.size()));
    if (is_new) p().constants.push_back(number);
    return at->second;
  }
  int64_t bytes_of(size_t words) { return value(static_cast<int64_t>(words * kWordBytes)); }
  int64_t slot(SlotKind kind, bool is_on_host = false) {
    p().slots.push_back({static_cast<int64_t>(kind), -1, -1, 8, 0, is_on_host, 0});
    return static_cast<int64_t>(p().slots.size()) - 1;
  }
  void then(std::function<void(Meaning&)> step) { here().script->push_back(std::move(step)); }

  // ---- nodes and edges --------------------------------------------------------------------------

  int64_t add(CopyNode node) {
    const auto number = static_cast<int64_t>(graph_.nodes.size());
    if (number != here().entry) node.before.push_back(here().entry);
    graph_.nodes.push_back(std::move(node));
    here().nodes.push_back(number);
    return number;
  }
  CopyNode& node(int64_t number) { return graph_.nodes[static_cast<size_t>(number)]; }

  void wait(Level& level, int64_t waiting, int64_t slot, bool writes) {
    const Use& use = level.uses[slot];
    std::vector<int64_t>& before = node(waiting).before;
    if (use.writer != kNone) before.push_back(use.writer);
    if (!writes || (!keeps_reads_ && node(waiting).kernel == "MoveSlot")) return;
    std::ranges::copy_if(use.readers, std::back_inserter(before),
                         [&](int64_t reader) { return reader != waiting; });
  }

  static void note(Level& level, int64_t user, int64_t slot, bool writes) {
    Use& use = level.uses[slot];
    use.all.push_back(user);
    if (writes) use.readers.clear(), use.writer = user;
    if (!writes) use.readers.push_back(user);
  }

  // Around a frame its entry waits in the place of a node inside.
  void use(int64_t user, int64_t slot, bool writes) {
    wait(here(), user, slot, writes);
    note(here(), user, slot, writes);
    for (size_t inner = levels_.size() - 1; inner > home_.at(slot); --inner) {
      wait(levels_[inner - 1], levels_[inner].outer_entry, slot, writes);
      levels_[inner].outer_uses[slot] |= writes;
    }
  }
  void reads(int64_t user, int64_t slot) { use(user, slot, false); }
  void writes(int64_t user, int64_t slot) { use(user, slot, true); }

  // Who comes behind the frame waits for its exit.
  void leave(const Level& level, int64_t exit) {
    for (const auto& [slot, is_written] : level.outer_uses) note(here(), exit, slot, is_written);
  }

  int64_t made(int64_t slot, CopyNode maker) {
    home_[slot] = levels_.size() - 1;
    const int64_t number = add(std::move(maker));
    writes(number, slot);
    return number;
  }
  Tensor memory(size_t words) {
    const int64_t own = slot(SlotKind::memory);
    made(own, {"AllocMemory", own, bytes_of(words)});
    return {own, words, levels_.size() - 1};
  }
  Tensor empty(size_t words, bool is_on_host = false) {
    const int64_t own = slot(SlotKind::memory, is_on_host);
    made(own, {"EmptySlot"});
    then([own](Meaning& m) { m.contents[own].clear(); });
    return {own, words, levels_.size() - 1};
  }
  void free(int64_t slot, bool is_object = false) {
    const std::vector<int64_t>& users = here().uses[slot].all;
    CopyNode made{"FreeMemory", slot, is_object, 0, users};
    if (is_freed_ahead(slot))
      std::ranges::copy_if(users, std::back_inserter(made.related),
                           [&](int64_t user) { return section_of(node(user).kernel) == "launch"; });
    add(std::move(made));
  }
  // What a planner for several workers lets run ahead of launches: Frees of the graph itself, where
  // copies are chains, of what neither the host nor a frame made.
  bool is_freed_ahead(int64_t slot) {
    if (!is_split_ || levels_.size() > 1) return false;
    const SlotRow& row = p().slots[static_cast<size_t>(slot)];
    const auto kind = static_cast<SlotKind>(row.kind);
    return !row.is_on_host && (kind == SlotKind::memory || kind == SlotKind::workspace) &&
           node(here().uses[slot].all.front()).kernel != "EmptySlot";
  }
  void move(int64_t from, int64_t to) {
    const int64_t moved = add({"MoveSlot", from, to});
    writes(moved, from), writes(moved, to);
    then([from, to](Meaning& m) { m.contents[to] = std::move(m.contents[from]); });
  }

  // ---- copies -----------------------------------------------------------------------------------

  void add_input() {
    const int64_t input = slot(SlotKind::input);
    home_[input] = 0;
    std::vector<uint64_t> contents;
    for (size_t i = some_words(); i-- > 0;) contents.push_back(random_());
    p().inputs.push_back({0, input, -1, 0, -1, 0});
    graph_.inputs.push_back(contents);
    const size_t words = contents.size();
    then([=](Meaning& m) { m.contents[input] = contents; });
    live_.push_back(on_the_device(input, words, "CopyH2D"));
  }

  Tensor on_the_device(int64_t source, size_t words, const char* kernel) {
    const int64_t target = slot(SlotKind::memory);
    p().tensor_copies.push_back({source, target, bytes_of(words), 0, 0});
    const auto row = static_cast<int64_t>(p().tensor_copies.size()) - 1;
    if (is_split_) {
      const int64_t calc = add({"CalcDeviceCopySizes", row});
      reads(calc, source);
      const int64_t allocation = add({"AllocMemHbm", row, 0, 0, {calc}});
      reads(made(target, {"ShareH2DCopyResult", row, 0, 0, {allocation}}), source);
      const int64_t submission = add({"LaunchH2DCopy", row});
      reads(submission, source), writes(submission, target);
    } else {
      reads(made(target, {kernel, row, row + 1}), source);
    }
    then([=](Meaning& m) { m.contents[target] = m.contents[source]; });
    return {target, words, levels_.size() - 1};
  }

  int64_t home(const Tensor& tensor) {
    const int64_t host = slot(SlotKind::memory, true);
    reads(made(host, {"CopyD2H", tensor.slot, host, bytes_of(tensor.words)}), tensor.slot);
    then([=, from = tensor.slot](Meaning& m) { m.contents[host] = m.contents[from]; });
    return host;
  }

  void call_host() {
    const auto number = static_cast<int64_t>(p().host_calls.size());
    const auto begin = static_cast<int64_t>(p().slot_lists.size());
    std::vector<int64_t> arguments;
    graph_.host_calls.argument_words.emplace_back();
    for (const Tensor* tensor : some_reads()) {
      arguments.push_back(home(*tensor));
      graph_.host_calls.argument_words.back().push_back(tensor->words);
    }
    p().slot_lists.insert(p().slot_lists.end(), arguments.begin(), arguments.end());
    const auto end = static_cast<int64_t>(p().slot_lists.size());
    const int64_t result = slot(SlotKind::object);
    p().slot_lists.push_back(result);
    p().host_calls.push_back({number, begin, end, end, end + 1});
    const size_t words = some_words();
    graph_.host_calls.result_words.push_back(words);
    const int64_t called = made(result, {"HostCall", number});
    for (const int64_t argument : arguments) reads(called, argument);
    then([=](Meaning& m) {
      std::vector<std::vector<uint64_t>> contents;
      for (const int64_t argument : arguments) contents.push_back(m.contents[argument]);
      m.contents[result] = folded(static_cast<uint64_t>(number), words, contents);
    });
    for (const int64_t argument : arguments) free(argument);
    live_.push_back(on_the_device(result, words, "MakeSureTensorAtDevice"));
    free(result, true);
  }

  // ---- launches ---------------------------------------------------------------------------------

  std::vector<const Tensor*> some_reads() {
    std::vector<const Tensor*> found;
    const size_t count = std::min(1 + random_() % kMostReads, live_.size());
    for (size_t i = 0; i < count; ++i) found.push_back(&live_[random_() % live_.size()]);
    return found;
  }

  Tensor computed(size_t words, uint64_t mask = kAnyWord) {
    Tensor target = memory(words);
    launch(some_reads(), target, mask, here().group);
    return target;
  }

  int64_t launch(const std::vector<const Tensor*>& read, const Tensor& target, uint64_t mask,
                 size_t group) {
    const auto row = static_cast<int64_t>(graph_.launches++);
    const uint64_t seed = random_();
    describe(row, read, target, seed, mask);
    groups_launches_.emplace(group, row);
    const int64_t scratch = chance(0.2) ? slot(SlotKind::workspace) : kNone;
    if (scratch != kNone) made(scratch, {"AllocWorkspace", scratch, row, 0, {here().last_infer}});
    const int64_t launched = add({"Launch", row});
    for (const Tensor* one : read) reads(launched, one->slot);
    writes(launched, target.slot);
    if (scratch != kNone) writes(launched, scratch), free(scratch);
    std::vector<int64_t> sources;
    for (const Tensor* one : read) sources.push_back(one->slot);
    then([=, to = target.slot, words = target.words](Meaning& m) {
      m.contents[to] = folded_turn(m, seed, words, mask, sources);
    });
    return launched;
  }

  void describe(int64_t row, const std::vector<const Tensor*>& read, const Tensor& target,
                uint64_t seed, uint64_t mask) {
    const auto first_view = static_cast<int64_t>(p().views.size());
    const auto first_word = static_cast<int64_t>(p().words.size());
    const int64_t words = value(static_cast<int64_t>(target.words));
    for (const Tensor* one : read) p().views.push_back({one->slot, value(0)});
    p().views.push_back({target.slot, value(0)});
    for (const int64_t word :
         {value(static_cast<int64_t>(seed)), words, here().turn, value(static_cast<int64_t>(mask))})
      p().words.push_back(word);
    for (const Tensor* one : read)
      p().words.push_back(one->word_count == kNone ? value(static_cast<int64_t>(one->words))
                                                   : one->word_count);
    const auto end = static_cast<int64_t>(p().words.size());
    p().variants.push_back({static_cast<int64_t>(read.size()) - 1, words, value(0), value(64),
                            value(0), value(0), end, end});
    p().launches.push_back({row, row + 1, first_word, end, first_view,
                            static_cast<int64_t>(p().views.size()), 0, -1, kNone, kNone});
  }

  void operators(size_t count) {
    while (count-- > 0) {
      if (chance(0.3)) drop(0.3);
      if (chance(0.2))
        call_host();
      else if (levels_.size() <= kMostDepth && chance(0.35))
        add_flow();
      else
        add_launch();
    }
  }

  void add_launch() {
    const auto own = std::ranges::find_if(
        live_, [&](const Tensor& t) { return t.level == levels_.size() - 1 && t.words > 0; });
    if (own != live_.end() && chance(0.2))
      launch({&*own}, *own, kAnyWord, here().group);
    else
      live_.push_back(computed(some_words()));
  }

  // Something stays to be read.
  void drop(double odds) {
    std::erase_if(live_, [&, kept = live_.front().slot](const Tensor& tensor) {
      const bool is_ours =
          tensor.level == levels_.size() - 1 && tensor.slot != kept && chance(odds);
      if (is_ours) free(tensor.slot);
      return is_ours;
    });
  }

  void return_one() {
    const Tensor& tensor = live_[random_() % live_.size()];
    const int64_t output = slot(SlotKind::output), size = bytes_of(tensor.words);
    const auto number = static_cast<int64_t>(p().outputs.size());
    p().outputs.push_back({0, output, 0});
    made(output, {"AllocModelOutput", output, number, size});
    const int64_t copy = add({"EnsureTensorAtOutMemory", tensor.slot, output, size});
    reads(copy, tensor.slot), writes(copy, output);
    then([=, from = tensor.slot](Meaning& m) { m.contents[output] = m.contents[from]; });
  }

  // ---- frames -----------------------------------------------------------------------------------

  void add_flow() { chance(0.5) ? add_branches() : add_loop(); }

  // The nodes of a frame behind `pivot`, whatever `fill` adds. Its BranchDone.
  template <typename Fill>
  int64_t frame(Level level, Level* closed, Fill fill) {
    const size_t outside = live_.size();
    levels_.push_back(std::move(level));
    fill();
    for (size_t i = outside; i < live_.size(); ++i) free(live_[i].slot);
    live_.resize(outside, Tensor{});
    std::vector<int64_t> all = here().nodes;
    const int64_t done = add({"BranchDone", 0, 0, 0, std::move(all)});
    *closed = std::move(here());
    levels_.pop_back();
    return done;
  }

  // Nodes of the control frame itself wait for nothing but what is said.
  int64_t control(CopyNode bare) {
    graph_.nodes.push_back(std::move(bare));
    return static_cast<int64_t>(graph_.nodes.size()) - 1;
  }

  void close(int64_t entry, int64_t exit) {
    here().nodes.push_back(exit);
    if (levels_.size() == 1) graph_.frames.push_back({entry, exit + 1});
  }

  void add_branches() {
    const int64_t branches = 2 + static_cast<int64_t>(random_() % 2);
    const bool is_bool = branches == 2 && chance(0.5);
    const Tensor choice = computed(1, kSmallWord);
    const int64_t chosen = home(choice);
    free(choice.slot);
    std::vector<Tensor> results;
    for (size_t i = random_() % 3; i-- > 0;) results.push_back(empty(some_words()));
    const int64_t entry = add({"SwitchNotify", chosen, branches, is_bool});
    reads(entry, chosen);
    node(entry).before.push_back(here().last_infer);
    auto scripts = std::make_shared<std::vector<Script>>(static_cast<size_t>(branches));
    std::vector<int64_t> ends;
    std::vector<Level> closed(static_cast<size_t>(branches));
    for (int64_t b = 0; b < branches; ++b) {
      const int64_t pivot = control({"BranchPivot", b, 0, 0, {entry}});
      const auto at = static_cast<size_t>(b);
      const Level level{pivot, entry, here().turn, here().group, &(*scripts)[at]};
      ends.push_back(frame(level, &closed[at], [&] {
        operators(random_() % 3);
        for (const Tensor& result : results) {
          const Tensor staged = computed(result.words);
          move(staged.slot, result.slot);
          free(staged.slot);
        }
      }));
    }
    const int64_t exit = control({"WaitAnyone", 0, 0, 0, ends});
    close(entry, exit);
    here().last_infer = exit;
    for (const Level& level : closed) leave(level, exit);
    then([=](Meaning& m) {
      const uint64_t word = m.contents[chosen][0];
      const auto last = static_cast<uint64_t>(branches) - 1;
      perform((*scripts)[is_bool ? (word & 0xFF ? 0 : 1) : std::min(word, last)], m);
    });
    free(chosen);
    live_.insert(live_.end(), results.begin(), results.end());
  }

  struct Loop {
    int64_t limit;
    int64_t trips = kNone, condition = kNone;  // slots
    std::vector<Tensor> carried = {};
    Tensor collected{kNone, 0, 0};
    size_t group = 0;
    int64_t turn = 0, next = 0, offset = 0;  // values
  };

  // A new group whose one dim is passed to it; its values: the dim, then those of `more`.
  int64_t add_group(std::initializer_list<Instruction> more) {
    Group group{};
    group.dim_begin = dims_, group.dim_end = ++dims_;
    group.instruction_begin = static_cast<int64_t>(p().instructions.size());
    p().instructions.push_back({static_cast<int64_t>(Operation::dim), group.dim_begin, 0});
    p().instructions.insert(p().instructions.end(), more);
    group.instruction_end = static_cast<int64_t>(p().instructions.size());
    groups_.push_back(group);
    return static_cast<int64_t>(kConstants) + group.instruction_begin;
  }
  int64_t pass(int64_t passed, size_t group) {
    p().words.push_back(passed);
    const auto end = static_cast<int64_t>(p().words.size());
    return add({"PassExtents", groups_[group].dim_begin, end - 1, end, {}, {}, 0, value(0)});
  }
  void finish(Group& group) {
    group.launch_begin = static_cast<int64_t>(p().group_launches.size());
    const auto number = static_cast<size_t>(&group - groups_.data());
    const auto [begin, end] = groups_launches_.equal_range(number);
    for (auto at = begin; at != end; ++at) p().group_launches.push_back(at->second);
    group.launch_end = static_cast<int64_t>(p().group_launches.size());
  }

  Loop loop() {
    Loop made{static_cast<int64_t>(random_() % 4)};
    if (chance(0.5)) {
      const Tensor trips = computed(1, kSmallWord);
      made.trips = home(trips);
      free(trips.slot);
      if (chance(0.5)) made.limit = INT64_MAX;
    }
    if (chance(0.5)) {
      made.condition = empty(1, true).slot;
      move_condition(made.condition);
    }
    for (size_t i = random_() % 3; i-- > 0;) {
      made.carried.push_back(empty(some_words()));
      move_computed(made.carried.back());
    }
    if (chance(0.6)) made.collected = empty(some_words());
    const int64_t piece = bytes_of(made.collected.words), one = value(1);
    const auto self = static_cast<int64_t>(kConstants + p().instructions.size());
    made.turn = add_group({{static_cast<int64_t>(Operation::add), self, one},
                           {static_cast<int64_t>(Operation::mul), self, piece}});
    made.next = made.turn + 1, made.offset = made.turn + 2;
    made.group = groups_.size() - 1;
    return made;
  }

  void move_computed(const Tensor& target) {
    const Tensor staged = computed(target.words);
    move(staged.slot, target.slot);
    free(staged.slot);
  }
  void move_condition(int64_t target) {
    const Tensor staged = computed(1, kSmallWord);
    const int64_t host = home(staged);
    free(staged.slot);
    move(host, target);
    free(host);
  }

  void add_loop() {
    const Loop made = loop();
    const int64_t first = pass(value(0), made.group);
    const int64_t enter = add({"Enter", 0, 0, 0, {first, here().last_infer}});
    const int64_t head = control({"WaitAnyone", 0, 0, 0, {enter}});
    const int64_t infer = control({"InferShape", static_cast<int64_t>(made.group), 0, 0, {head}});
    p().turns.push_back({made.turn, value(made.limit), made.trips, made.condition});
    const auto row = static_cast<int64_t>(p().turns.size()) - 1;
    const int64_t entry = control({"SwitchTurn", row, 2, 0, {infer}});
    const int64_t pivot = control({"BranchPivot", 0, 0, 0, {entry}});
    auto script = std::make_shared<Script>();
    Level closed{};
    const Level level{pivot, enter, made.turn, made.group, script.get()};
    const int64_t done = frame(level, &closed, [&] { turn(made); });
    node(head).before.push_back(done);
    const int64_t behind = control({"BranchPivot", 1, 0, 0, {entry}});
    const int64_t exit = control({"Exit", 0, 0, 0, {behind}});
    close(enter, exit);
    here().last_infer = exit;
    for (const int64_t looked_at : {made.trips, made.condition})
      if (looked_at != kNone)
        wait(here(), enter, looked_at, false), note(here(), exit, looked_at, false);
    leave(closed, exit);
    then([=](Meaning& m) { perform_loop(made, *script, m); });
    behind_loop(made, exit);
  }

  void turn(const Loop& made) {
    for (const Tensor& carried : made.carried) live_.push_back(carried);
    const size_t carried = made.carried.size();
    operators(1 + random_() % 3);
    std::vector<Tensor> next;
    for (const Tensor& one : made.carried) next.push_back(computed(one.words));
    if (made.condition != kNone) move_condition(made.condition);
    if (made.collected.slot != kNone) collect(made);
    for (size_t i = 0; i < carried; ++i) {
      move(next[i].slot, made.carried[i].slot);
      free(next[i].slot);
    }
    const auto is_carried = [&](const Tensor& t) {
      return std::ranges::count(made.carried, t.slot, &Tensor::slot) > 0;
    };
    std::erase_if(live_, is_carried);  // they are freed outside
    pass(made.next, made.group);
  }

  void collect(const Loop& made) {
    const int64_t target = made.collected.slot, size = bytes_of(made.collected.words);
    const Tensor piece = computed(made.collected.words);
    writes(add({"GrowMemory", target, size, made.turn, {}, {}, 0, value(0)}), target);
    p().copies.push_back({piece.slot, value(0), target, made.offset, size});
    const int64_t copy = add({"CopyMemory", static_cast<int64_t>(p().copies.size()) - 1});
    reads(copy, piece.slot), writes(copy, target);
    free(piece.slot);
    then([=, from = piece.slot](Meaning& m) {
      std::vector<uint64_t>& all = m.contents[target];
      all.insert(all.end(), m.contents[from].begin(), m.contents[from].end());
    });
  }

  static void perform_loop(const Loop& loop, const Script& script, Meaning& m) {
    for (uint64_t turn = 0;; ++turn) {
      bool goes_on = static_cast<int64_t>(turn) < loop.limit;
      if (loop.trips != kNone) goes_on = goes_on && turn < m.contents[loop.trips][0];
      if (loop.condition != kNone) goes_on = goes_on && m.contents[loop.condition][0] != 0;
      if (!goes_on) return;
      m.turns.push_back(turn);
      perform(script, m);
      m.turns.pop_back();
    }
  }

  void behind_loop(const Loop& made, int64_t exit) {
    for (const int64_t looked_at : {made.trips, made.condition})
      if (looked_at != kNone) free(looked_at);
    live_.insert(live_.end(), made.carried.begin(), made.carried.end());
    if (made.collected.slot == kNone) return;
    const int64_t words = value(static_cast<int64_t>(made.collected.words));
    const auto self = static_cast<int64_t>(kConstants + p().instructions.size());
    const int64_t count = add_group({{static_cast<int64_t>(Operation::mul), self, words}});
    const size_t group = groups_.size() - 1;
    const int64_t passed = pass(made.turn, group);
    node(passed).before.push_back(exit);
    const int64_t infer = add({"InferShape", static_cast<int64_t>(group), 0, 0, {passed}});
    here().last_infer = infer;
    Tensor all = made.collected;
    all.word_count = count + 1;
    const Tensor target = memory(some_words());
    node(launch({&all}, target, kAnyWord, group)).before.push_back(infer);
    free(all.slot);
    live_.push_back(target);
  }

  std::mt19937_64 random_;
  const bool keeps_reads_;
  const bool is_split_;
  CopyGraph graph_;
  Script script_;
  Meaning meaning_;
  std::vector<Level> levels_;
  std::vector<Tensor> live_;
  std::vector<Group> groups_;
  std::multimap<size_t, int64_t> groups_launches_;
  std::map<int64_t, int64_t> values_;
  std::map<int64_t, size_t> home_;  // the level where a slot was made
  int64_t dims_ = 0;
};

}  // namespace

CopyGraph random_flow_graph(uint64_t seed, bool keeps_reads) {
  return Generator(seed, keeps_reads).graph();
}

}  // namespace grainline::test
