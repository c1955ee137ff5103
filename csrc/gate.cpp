#include "gate.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "driver.h"

namespace py = pybind11;

namespace pycutlass {

struct Gate::State {
  explicit State(double seconds) : patience(seconds) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::chrono::duration<double> const patience;
  bool opened = false;
  bool expired = false;

  /// What the stream runs, in a thread of the driver's.
  static void stand(void* data) {
    std::unique_ptr<std::shared_ptr<State>> const held(static_cast<std::shared_ptr<State>*>(data));
    State& state = **held;
    std::unique_lock<std::mutex> lock(state.mutex);
    if (!state.changed.wait_for(lock, state.patience, [&] { return state.opened; })) state.expired = true;
  }
};

Gate::Gate(Stream const& stream, double seconds) : state_(std::make_shared<State>(seconds)) {
  ContextScope scope(stream.context());
  auto held = std::make_unique<std::shared_ptr<State>>(state_);
  CUstream const handle = stream.handle();
  check(unlocked([&] { return driver().cuLaunchHostFunc(handle, &State::stand, held.get()); }), "cuLaunchHostFunc");
  held.release();  // the driver's now
}

bool Gate::open() noexcept {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->opened = true;
  state_->changed.notify_all();
  return !state_->expired;
}

void bind_gate(py::module_& m) {
  py::class_<Gate>(m, "Gate", "A stream that stands still until the host lets it go on.")
      .def(py::init<Stream const&, double>(), py::arg("stream"), py::arg("seconds"))
      .def("open", &Gate::open, "Let the stream go on; False where it has done so by itself, after the seconds.");
}

}  // namespace pycutlass
