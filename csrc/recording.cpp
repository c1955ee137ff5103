#include "recording.h"

#include <utility>

#include "bindings.h"
#include "launch_pool.h"

namespace py = pybind11;

namespace pycutlass {

Recording*& Recording::innermost() {
  static thread_local Recording* open = nullptr;
  return open;
}

void Recording::begin(py::object self) {
  if (self_) throw py::value_error("a recording is open already");
  self_ = std::move(self);
  outer_ = std::exchange(innermost(), this);
}

void Recording::end() {
  if (!self_ || innermost() != this) throw py::value_error("another recording was begun after this one");
  innermost() = std::exchange(outer_, nullptr);
  py::object const gone = std::move(self_);
}

void Recording::count_launch() {
  for (Recording* each = innermost(); each; each = each->outer_) ++each->launched_;
}

void Recording::note_answer(py::object const& who, py::object const& answer) {
  for (Recording* each = innermost(); each; each = each->outer_) each->answers_.append(py::make_tuple(who, answer));
}

void Recording::note(std::shared_ptr<LaunchPool> pool, LaunchTensors const& tensors, uint32_t written, size_t kernels) {
  for (Recording* each = innermost(); each; each = each->outer_) {
    Launch launch{pool, {}, written};
    for (size_t i = 0; i < tensors.count; ++i) {
      launch.tensors.push_back(py::reinterpret_borrow<py::object>(tensors.items[i]));
    }
    each->launches_.push_back(std::move(launch));
    each->waiting_ += kernels;
  }
}

void bind_recording(py::module_& m) {
  py::class_<Recording>(m, "Recording", "Records the launches of this thread within a `with`.")
      .def(py::init<>())
      .def("__enter__",
           [](py::object self) {
             self.cast<Recording&>().begin(self);
             return self;
           })
      .def("__exit__", [](Recording& self, py::object const&, py::object const&, py::object const&) { self.end(); })
      .def_static("note_answer", &Recording::note_answer, py::arg("who"), py::arg("answer"),
                  "Tell those that record in this thread how float32 is computed, which `who` has asked for.")
      .def_property_readonly("answers", &Recording::answers, "What was answered, as pairs of who asked and the answer.")
      .def_property_readonly("is_complete", &Recording::is_complete,
                             "Whether all that was launched waits for other tensors now.")
      .def_property_readonly(
          "launches",
          [](Recording const& self) {
            py::list launches;
            for (Recording::Launch const& each : self.launches()) {
              py::tuple tensors(each.tensors.size());
              py::tuple written(each.tensors.size());
              for (size_t i = 0; i < each.tensors.size(); ++i) {
                tensors[i] = each.tensors[i];
                written[i] = py::bool_(each.written >> i & 1);
              }
              launches.append(py::make_tuple(each.pool, tensors, written));
            }
            return launches;
          },
          "Of those that wait, where they do, their tensors, and which of these they write.");
}

}  // namespace pycutlass
