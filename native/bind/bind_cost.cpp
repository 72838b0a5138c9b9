// Cost functions that the planner shares with the tiling of a run.

#include "bind/bindings.h"
#include "cost/counts.h"
#include "cost/launch.h"
#include "cost/objective.h"

namespace nb = nanobind;

namespace grainline {
namespace {

double time_of(int64_t work_ps, int64_t traffic_bytes, int64_t task_ps, int64_t blocks,
               int64_t grain, int homes, bool is_hot, const MachineCosts& costs) {
  return launch_time({work_ps, traffic_bytes, task_ps, blocks}, grain, homes, is_hot, costs);
}

double expectation_of(int64_t work_ps, int64_t traffic_bytes, int64_t task_ps, int64_t blocks,
                      int64_t grain, int homes, bool is_hot, const MachineCosts& costs) {
  return expected_time({work_ps, traffic_bytes, task_ps, blocks}, grain, homes, is_hot, costs);
}

nb::tuple terms_of(int64_t work_ps, int64_t traffic_bytes, int64_t task_ps, double blocks_ps,
                   int64_t blocks, int64_t grain, int homes, bool is_hot,
                   const MachineCosts& costs) {
  const LaunchTerms t = launch_terms({work_ps, traffic_bytes, task_ps, blocks}, blocks_ps, grain,
                                     homes, is_hot, costs);
  return nb::make_tuple(t.arithmetic_ps, t.memory_ps, t.blocks_ps, t.lost_ps, t.tasks_ps, t.paid_ps,
                        t.time_ps);
}

nb::tuple choice_of(int64_t work_ps, int64_t traffic_bytes, int64_t task_ps, int64_t blocks,
                    int homes_allowed, bool is_hot, const MachineCosts& costs) {
  const LaunchChoice choice =
      choose_launch({work_ps, traffic_bytes, task_ps, blocks}, homes_allowed, is_hot, costs);
  return nb::make_tuple(choice.grain, choice.homes, choice.time_ps);
}

// The fields of ExecutionWork after the two per-packet figures, in their order.
nb::tuple counts_of(int64_t packets, int64_t blocks, int64_t packets_per_block, int64_t workers,
                    int64_t blocks_per_task, int64_t chunks_per_worker) {
  const ExecutionWork w =
      count_tasks(packets, blocks, packets_per_block, workers, blocks_per_task, chunks_per_worker);
  return nb::make_tuple(w.packet_count, w.block_count, w.task_count, w.active_workers,
                        w.blocks_per_task, w.critical_packets, w.critical_blocks, w.critical_tasks);
}

nb::tuple cost_of(double arithmetic, double memory, int64_t packets, int64_t active_workers,
                  int64_t critical_packets, int64_t critical_blocks, int64_t critical_tasks,
                  double block_dispatch, double task_dispatch, double worker_activation) {
  ExecutionWork work;
  work.arithmetic_per_packet = arithmetic;
  work.memory_per_packet = memory;
  work.packet_count = packets;
  work.active_workers = active_workers;
  work.critical_packets = critical_packets;
  work.critical_blocks = critical_blocks;
  work.critical_tasks = critical_tasks;
  CostCoefficients coefficients;
  coefficients.block_dispatch = block_dispatch;
  coefficients.task_dispatch = task_dispatch;
  coefficients.worker_activation = worker_activation;
  const CostTerms t = cost_terms(work, coefficients);
  return nb::make_tuple(t.arithmetic, t.memory, t.block_dispatch, t.imbalance, t.task_dispatch,
                        t.worker_activation, t.score);
}

}  // namespace

void bind_cost(nb::module_& module) {
  using nb::arg;
  nb::class_<MachineCosts>(module, "MachineCosts")
      .def(nb::init<>())
      .def_rw("task_ps", &MachineCosts::task_ps)
      .def_rw("hot_paid_ps", &MachineCosts::hot_paid_ps)
      .def_rw("hot_delay_ps", &MachineCosts::hot_delay_ps)
      .def_rw("parked_paid_ps", &MachineCosts::parked_paid_ps)
      .def_rw("parked_delay_ps", &MachineCosts::parked_delay_ps)
      .def_rw("home_delay_ps", &MachineCosts::home_delay_ps)
      .def_rw("nearest_bytes", &MachineCosts::nearest_bytes)
      .def_rw("private_bytes", &MachineCosts::private_bytes)
      .def_rw("shared_bytes", &MachineCosts::shared_bytes)
      .def_rw("private_byte_ps", &MachineCosts::private_byte_ps)
      .def_rw("shared_byte_ps", &MachineCosts::shared_byte_ps)
      .def_rw("memory_byte_ps", &MachineCosts::memory_byte_ps)
      .def_rw("bus_byte_ps", &MachineCosts::bus_byte_ps)
      .def_rw("crowd", &MachineCosts::crowd)
      .def_rw("tie", &MachineCosts::tie);
  module.def("set_machine_costs", &set_machine_costs, arg("costs"),
             "What launches of models that are loaded from now on are chosen by.");
  module.def("launch_time", time_of, arg("work_ps"), arg("traffic_bytes"), arg("task_ps"),
             arg("blocks"), arg("grain"), arg("homes"), arg("is_hot"), arg("costs"),
             "Predicted picoseconds of one launch whose homes are equally fast.");
  module.def("expected_time", expectation_of, arg("work_ps"), arg("traffic_bytes"), arg("task_ps"),
             arg("blocks"), arg("grain"), arg("homes"), arg("is_hot"), arg("costs"),
             "Picoseconds expected of one launch, of which some meet slow homes.");
  module.def(
      "launch_terms", terms_of, arg("work_ps"), arg("traffic_bytes"), arg("task_ps"),
      arg("blocks_ps"), arg("blocks"), arg("grain"), arg("homes"), arg("is_hot"), arg("costs"),
      "Picoseconds of arithmetic, memory, blocks, losses, tasks and handing over on the home "
      "that ends last, and of the launch.");
  module.def("choose_launch", choice_of, arg("work_ps"), arg("traffic_bytes"), arg("task_ps"),
             arg("blocks"), arg("homes_allowed"), arg("is_hot"), arg("costs"),
             "(blocks per task, homes, expected picoseconds) of one launch.");
  module.def("count_work", counts_of, arg("packets"), arg("blocks"), arg("packets_per_block"),
             arg("workers"), arg("blocks_per_task"), arg("chunks_per_worker"),
             "(Q, L, C, h, G, critical packets, critical blocks, critical tasks) of a launch.");
  module.def("cost_terms", cost_of, arg("arithmetic"), arg("memory"), arg("packets"),
             arg("active_workers"), arg("critical_packets"), arg("critical_blocks"),
             arg("critical_tasks"), arg("block_dispatch"), arg("task_dispatch"),
             arg("worker_activation"),
             "The six terms of the default objective and their sum; unchecked.");
}

}  // namespace grainline
