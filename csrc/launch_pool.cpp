#include "launch_pool.h"

#include <algorithm>
#include <utility>

#include "bindings.h"
#include "recording.h"
#include "served_call.h"

namespace py = pybind11;

namespace pycutlass {
namespace {

/// The same tensors without D.
std::array<PyObject*, LaunchTensors::kMost> without_d(LaunchTensors const& tensors) {
  std::array<PyObject*, LaunchTensors::kMost> others{};
  std::copy_n(tensors.items, tensors.count, others.begin());
  if (tensors.count > PYCUTLASS_D) others[PYCUTLASS_D] = Py_None;
  return others;
}

}  // namespace

uint64_t mixed(uint64_t hash, TorchImpl tensor) {
  constexpr uint64_t kAccess = 15;
  int64_t const rank = tensor.rank();
  uint64_t const memory = tensor.storage() ? tensor.memory() : 0;
  uint64_t const place = (static_cast<uint64_t>(tensor.offset()) & kAccess) << 4 | (memory & kAccess);
  hash = mixed(hash, static_cast<uint64_t>(rank) << 8 | place);
  hash = mixed(hash, tensor.keys());
  hash = mixed(hash, tensor.type_and_device());
  for (int64_t i = 0; i < rank; ++i) {
    hash = mixed(hash, static_cast<uint64_t>(tensor.sizes()[i]));
    hash = mixed(hash, static_cast<uint64_t>(tensor.strides()[i]));
  }
  return hash;
}

LaunchPool::LaunchPool(py::tuple const& names, int bias) : bias_(bias) {
  auto const count = static_cast<int>(names.size()) + 4;
  if (bias >= count || bias < -1) throw py::value_error("a bias is one of the tensors");
  for (py::handle each : names) names_.push_back(py::str(each));
}

std::optional<LaunchTensors> LaunchPool::placed(std::array<PyObject*, 4> const& matrices, PyObject* by_name,
                                                PyObject* bias, std::array<PyObject*, LaunchTensors::kMost>& room,
                                                std::vector<py::object>& owned) const {
  size_t const count = matrices.size() + names_.size();
  if (count > room.size()) return std::nullopt;
  std::fill_n(room.begin(), count, Py_None);
  std::copy(matrices.begin(), matrices.end(), room.begin());
  bool const has_bias = bias != Py_None;
  if (has_bias ? bias_ < 0 : bias_ > PYCUTLASS_D) return std::nullopt;
  size_t const place = has_bias ? static_cast<size_t>(bias_) : count;
  if (has_bias && std::exchange(room[place], bias) != Py_None) return std::nullopt;
  size_t missing = by_name == Py_None ? 0 : static_cast<size_t>(PyDict_GET_SIZE(by_name));
  for (size_t i = 0; i < names_.size(); ++i) {
    if (matrices.size() + i == place) continue;
    PyObject* const found = by_name == Py_None ? nullptr : PyDict_GetItemWithError(by_name, names_[i].ptr());
    if (!found || found == Py_None) {
      PyErr_Clear();
      return std::nullopt;
    }
    owned.push_back(py::reinterpret_borrow<py::object>(found));
    room[matrices.size() + i] = found;
    --missing;
  }
  return missing ? std::nullopt : std::optional<LaunchTensors>({room.data(), count});
}

uint32_t LaunchTensors::given() const {
  uint32_t given = 0;
  for (size_t i = 0; i < count; ++i) given |= uint32_t{has(i)} << i;
  return given;
}

std::optional<uint64_t> LaunchPool::key_of(LaunchTensors const& tensors) const {
  uint64_t key = tensors.count;
  for (size_t i = 0; i < tensors.count; ++i) {
    if (!tensors.has(i)) {
      key = mixed(key, 1);
      continue;
    }
    if (!knows(Py_TYPE(tensors.items[i]))) return std::nullopt;
    TorchImpl const impl(tensors.items[i]);
    if (impl.rank() < 0 || impl.rank() > TorchImpl::kMaxRank) return std::nullopt;
    key = mixed(key, impl);
  }
  return key;
}

/// The tensors that are operands of this step, and None in the places of the others.
LaunchTensors LaunchStep::operands_of(LaunchTensors const& tensors,
                                      std::array<PyObject*, LaunchTensors::kMost>& room) const {
  size_t count = 0;
  for (size_t i = 0; i < tensors.count; ++i) {
    bool const is_taken = taken >> i & 1;
    room[i] = is_taken ? tensors.items[i] : Py_None;
    if (is_taken) count = i + 1;
  }
  return {room.data(), count};
}

/// Goes over to tensors, all steps or none: the first that cannot leaves it to whoever forgets the tensors of others.
bool LaunchPool::Waiting::update(LaunchTensors const& tensors) {
  std::array<PyObject*, LaunchTensors::kMost> room;
  for (LaunchStep const& step : steps) {
    LaunchTensors const own = step.operands_of(tensors, room);
    if (step.call->has_followed_scalar() || !step.call->update(own.items, own.count)) return false;
  }
  return true;
}

bool LaunchPool::Waiting::can_wait(LaunchTensors const& tensors) const {
  return std::all_of(steps.begin(), steps.end(), [&](LaunchStep const& step) {
    bool const has_all = !step.call->workspace_bytes() || memory;
    return has_all && step.call->can_wait(tensors.items, tensors.count, step.taken);
  });
}

void LaunchPool::Waiting::forget_tensors() noexcept {
  for (LaunchStep const& step : steps) step.call->forget_tensors(step.taken);
}

/// Which tensors launches write.
uint32_t LaunchPool::Waiting::written() const {
  uint32_t all = 0;
  for (LaunchStep const& step : steps) all |= step.call->written_operands() & step.taken;
  return all;
}

/// Each call orders its launches by its own workspace alone.
void LaunchPool::Waiting::run(Stream const& stream) {
  if (is_shared() && this->stream() != stream) stream.wait_for(*end);
  for (LaunchStep const& step : steps) step.call->run(py::none());
  if (is_shared()) stream.record(*end);
}

bool LaunchPool::keep(py::tuple const& launch, LaunchTensors const& tensors, unsigned long chosen_in,
                      py::object make_result) {
  auto const [steps, memory, bytes] = launch.cast<std::tuple<py::list, py::object, uint64_t>>();
  if (tensors.count > LaunchTensors::kMost || chosen_in != generation_ || bytes > kMostBytes / 4) return false;
  Waiting kept{steps, {}, tensors.given(), memory.is_none() ? py::object() : memory, bytes, {}};
  for (py::handle each : steps) {
    auto const [call, taken] = each.cast<std::pair<py::object, uint32_t>>();
    kept.steps.push_back({&call.cast<Call&>(), taken});
  }
  if (kept.steps.empty()) throw py::value_error("a launch has a step");
  if (!kept.can_wait(tensors)) return false;
  for (size_t i = 0; i < tensors.count; ++i) {
    if (!tensors.has(i) || knows(Py_TYPE(tensors.items[i]))) continue;
    if (!TorchKind::is_of_torch(tensors.items[i])) return false;
    types_[types_[0] ? 1 : 0] = py::type::of(tensors.items[i]);
  }
  std::optional<uint64_t> const key = key_of(tensors);
  if (!key) return false;
  if (kept.is_shared()) {
    kept.end = std::make_shared<Event>(kept.stream().context());
    kept.stream().record(*kept.end);
  }
  if (chosen_in_ != generation_) clear();
  chosen_in_ = generation_;
  Recording::note(shared_from_this(), tensors, kept.written(), kept.steps.size());
  kept.forget_tensors();
  put(*key, std::move(kept));
  if (!make_result.is_none()) {
    auto const others = without_d(tensors);
    if (results_.size() >= kMostWaiting) results_.clear();
    results_[*key_of({others.data(), tensors.count})] = std::move(make_result);
  }
  return true;
}

py::object LaunchPool::new_result(LaunchTensors const& without_d) const {
  std::optional<uint64_t> const key = key_of(without_d);
  auto const found = key ? results_.find(*key) : results_.end();
  if (found == results_.end()) return {};
  py::object const make = found->second;  // which stays while it is called
  return make();
}

bool LaunchPool::has(uint64_t key) const { return chosen_in_ == generation_ && waiting_.find(key) != waiting_.end(); }

bool LaunchPool::run(uint64_t key, LaunchTensors const& tensors) {
  if (chosen_in_ != generation_) {
    clear();
    return false;
  }
  if (!has(key)) return false;
  for (size_t i = 0; i < tensors.count; ++i) {
    if (tensors.has(i) && is_followed_now(tensors.items[i])) return false;
  }
  auto const first = waiting_.find(key);
  if (first == waiting_.end()) return false;
  py::object const owner = first->second.back().owner;  // which stays while its call is asked
  Stream const stream = first->second.back().steps.front().call->current_stream();
  auto const found = waiting_.find(key);  // after all that may call anything
  if (found == waiting_.end()) return false;
  std::vector<Waiting>& alike = found->second;
  if (alike.back().memory) {
    if (stream.is_capturing()) return false;  // a graph needs memory of its own
    auto const there =
        std::find_if(alike.begin(), alike.end(), [&](auto const& each) { return each.stream() == stream; });
    if (there == alike.end() && alike.size() < kMostStreams) return false;  // streams are not to wait for each other
    std::iter_swap(there == alike.end() ? alike.begin() : there, alike.end() - 1);
  }
  Waiting taken = std::move(alike.back());
  alike.pop_back();
  if (alike.empty()) waiting_.erase(found);
  --size_;
  count_bytes(-static_cast<int64_t>(taken.bytes));
  unsigned long const cleared = cleared_;
  auto const put_back = [&] {
    taken.forget_tensors();
    if (cleared == cleared_ && chosen_in_ == generation_) put(key, std::move(taken));
  };
  if (taken.given != tensors.given() || !taken.update(tensors)) {
    put_back();
    return false;
  }
  taken.run(stream);  // a launch that fails does not come back
  if (!taken.can_wait(tensors)) return true;
  Recording::note(shared_from_this(), tensors, taken.written(), taken.steps.size());
  put_back();
  return true;
}

void LaunchPool::put(uint64_t key, Waiting waiting) {
  if (size_ >= kMostWaiting) clear();
  if (all_bytes_ + waiting.bytes > kMostBytes) clear_memory();
  count_bytes(static_cast<int64_t>(waiting.bytes));
  waiting_[key].push_back(std::move(waiting));
  ++size_;
}

void LaunchPool::count_bytes(int64_t more) {
  bytes_ += static_cast<uint64_t>(more);
  all_bytes_ += static_cast<uint64_t>(more);
  if (bytes_) {
    with_memory_.insert(this);
  } else {
    with_memory_.erase(this);
  }
}

/// Lets all pools with memory go of what waits there.
void LaunchPool::clear_memory() {
  std::vector<std::shared_ptr<LaunchPool>> pools;  // which may end, and others begin, while memory goes
  for (LaunchPool* each : with_memory_) {
    if (auto alive = each->weak_from_this().lock()) pools.push_back(std::move(alive));
  }
  for (auto const& each : pools) each->clear();
}

LaunchPool::~LaunchPool() { count_bytes(-static_cast<int64_t>(bytes_)); }

void LaunchPool::clear() {
  // What goes away goes last: its end may call anything.
  auto const gone = std::exchange(waiting_, {});
  auto const results = std::exchange(results_, {});
  size_ = 0;
  count_bytes(-static_cast<int64_t>(bytes_));
  ++cleared_;
}

PyObject* serve_plan(PyObject* const* given, Py_ssize_t count, PyObject* keywords) {
  static auto const names = interned("a", "b", "c", "out", "stream", "epilogue_inputs", "bias");
  static PyObject* const waiting = PyUnicode_InternFromString("_waiting");
  std::array<PyObject*, 7> values;
  values.fill(Py_None);
  if (!count || !arrange(names, given + 1, count - 1, names.size(), keywords, values)) return nullptr;
  auto const& [a, b, c, out, stream, by_name, bias] = values;
  if (stream != Py_None || a == Py_None || b == Py_None) return nullptr;
  if (by_name != Py_None && !PyDict_CheckExact(by_name)) return nullptr;
  auto const pool = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(given[0], waiting));
  if (!pool) PyErr_Clear();  // a plan that was never made: the function says so
  if (!pool || !py::isinstance<LaunchPool>(pool)) return nullptr;
  auto& launches = pool.cast<LaunchPool&>();
  std::array<PyObject*, LaunchTensors::kMost> room;
  std::vector<py::object> owned;
  std::optional<LaunchTensors> const tensors = launches.placed({a, b, c, out}, by_name, bias, room, owned);
  if (!tensors) return nullptr;
  auto result = py::reinterpret_borrow<py::object>(out);
  if (out == Py_None && !(result = launches.new_result(*tensors))) return nullptr;
  room[PYCUTLASS_D] = result.ptr();
  return launches.run(*tensors) ? result.release().ptr() : nullptr;
}

void bind_launch_pool(py::module_& m) {
  py::class_<LaunchPool, std::shared_ptr<LaunchPool>>(m, "LaunchPool",
                                                      "Launches that wait for tensors, and keep none alive meanwhile.")
      .def(py::init<py::tuple const&, int>(), py::arg("names") = py::tuple(), py::arg("bias") = -1)
      .def(
          "keep",
          [](LaunchPool& self, py::tuple const& launch, py::tuple const& tensors, unsigned long chosen_in,
             py::object make_result) {
            LaunchTensors const given{PySequence_Fast_ITEMS(tensors.ptr()), tensors.size()};
            return self.keep(launch, given, chosen_in, std::move(make_result));
          },
          py::arg("launch"), py::arg("tensors"), py::arg("chosen_in"), py::arg("make_result"),
          "Have a launch with `tensors` wait for others, without them: its steps, each a call with which of the "
          "tensors it takes, as bits, what keeps device memory of its own, and the bytes of that. False, and it is as "
          "it was, where it cannot wait.")
      .def(
          "run",
          [](LaunchPool& self, py::args const& tensors) {
            LaunchTensors const given{PySequence_Fast_ITEMS(tensors.ptr()), tensors.size()};
            return given.count <= LaunchTensors::kMost && self.run(given);
          },
          "Launch with A, B, C, D and further tensors on the current stream; False where no launch takes them.")
      .def("clear", &LaunchPool::clear)
      .def("__len__", &LaunchPool::size);
  m.def("generation", &LaunchPool::generation, "How often this process has measured.");
  m.def("begin_generation", &LaunchPool::begin_generation, "Have what was chosen so far be chosen anew.");
}

}  // namespace pycutlass
