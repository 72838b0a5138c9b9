// Cost functions that the planner shares with the tiling of a run.

#include <nanobind/stl/pair.h>

#include "bind/bindings.h"
#include "cost/counts.h"
#include "cost/grain.h"
#include "cost/objective.h"

namespace nb = nanobind;

namespace grainline {
namespace {

std::pair<int64_t, int> grain_of(int64_t total_ps, int64_t blocks, int homes_allowed,
                                 bool workers_hot, const PoolCalibration* calibration) {
  const GrainChoice choice = choose_grain(total_ps, blocks, homes_allowed, workers_hot,
                                          calibration ? *calibration : PoolCalibration{});
  return {choice.grain, choice.homes};
}

ExecutionWork work_of(int64_t programs, int64_t packet_width, int64_t block_size, int64_t workers,
                      int64_t blocks_per_task, int64_t chunks_per_worker) {
  return count_work(
      {programs, packet_width, block_size, workers, blocks_per_task, chunks_per_worker});
}

CostTerms cost_of(const ExecutionWork& work, const CostCoefficients& coefficients) {
  CostTerms terms;
  throw_unless_ok(evaluate_cost(work, coefficients, terms));
  return terms;
}

}  // namespace

void bind_cost(nb::module_& module) {
  using nb::arg;
  nb::class_<PoolCalibration>(module, "PoolCalibration")
      .def(nb::init<>())
      .def_rw("hot_threshold_ps", &PoolCalibration::hot_threshold_ps)
      .def_rw("parked_threshold_ps", &PoolCalibration::parked_threshold_ps)
      .def_rw("min_task_ps", &PoolCalibration::min_task_ps)
      .def_rw("tasks_per_home", &PoolCalibration::tasks_per_home);
  nb::class_<ExecutionWork>(module, "ExecutionWork")
      .def(nb::init<>())
      .def_rw("arithmetic_per_packet", &ExecutionWork::arithmetic_per_packet)
      .def_rw("memory_per_packet", &ExecutionWork::memory_per_packet)
      .def_rw("packet_count", &ExecutionWork::packet_count)
      .def_rw("block_count", &ExecutionWork::block_count)
      .def_rw("task_count", &ExecutionWork::task_count)
      .def_rw("active_workers", &ExecutionWork::active_workers)
      .def_rw("blocks_per_task", &ExecutionWork::blocks_per_task)
      .def_rw("critical_packets", &ExecutionWork::critical_packets)
      .def_rw("critical_blocks", &ExecutionWork::critical_blocks)
      .def_rw("critical_tasks", &ExecutionWork::critical_tasks);
  nb::class_<CostCoefficients>(module, "CostCoefficients")
      .def(nb::init<>())
      .def_rw("arithmetic", &CostCoefficients::arithmetic)
      .def_rw("broadcast_load", &CostCoefficients::broadcast_load)
      .def_rw("contiguous_memory", &CostCoefficients::contiguous_memory)
      .def_rw("gathered_lane", &CostCoefficients::gathered_lane)
      .def_rw("block_dispatch", &CostCoefficients::block_dispatch)
      .def_rw("task_dispatch", &CostCoefficients::task_dispatch)
      .def_rw("worker_activation", &CostCoefficients::worker_activation);
  nb::class_<CostTerms>(module, "CostTerms")
      .def_ro("arithmetic", &CostTerms::arithmetic)
      .def_ro("memory", &CostTerms::memory)
      .def_ro("block_dispatch", &CostTerms::block_dispatch)
      .def_ro("imbalance", &CostTerms::imbalance)
      .def_ro("task_dispatch", &CostTerms::task_dispatch)
      .def_ro("worker_activation", &CostTerms::worker_activation)
      .def_ro("score", &CostTerms::score);
  module.def("choose_grain", grain_of, arg("total_ps"), arg("blocks"), arg("homes_allowed"),
             arg("workers_hot"), arg("calibration").none() = nb::none(),
             "(blocks per task, homes) of one launch.");
  module.def("count_work", work_of, arg("physical_programs"), arg("packet_width") = 8,
             arg("block_size") = 32, arg("workers") = 1, arg("blocks_per_task") = 0,
             arg("chunks_per_worker") = 32);
  module.def("evaluate_cost", cost_of, arg("work"), arg("coefficients"));
}

}  // namespace grainline
