// Grouped GEMM on the launch fast path. What the kernel reads of its problems - addresses, leading dimensions, sizes
// and the schedule - is packed in host memory and sent to the device in one copy, before the launch that needs it.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "bindings.h"
#include "launch.h"
#include "overlap.h"
#include "staging.h"

namespace pycutlass {
namespace {

constexpr size_t kOperands = 4;  // A, B, C, D
constexpr size_t kC = 2, kD = 3;
constexpr size_t kAlignment = PYCUTLASS_SCRATCH_ALIGNMENT;  // the beginning of the table has it too

/// One operand of all problems.
struct OperandList {
  std::vector<pycutlass_operand> records;
  std::vector<OperandSlot> slots;
  std::vector<Span> spans;

  void resize(size_t count) {
    records.assign(count, pycutlass_operand{});
    slots = std::vector<OperandSlot>(count);
    spans.assign(count, Span{});
    for (size_t i = 0; i < count; ++i) slots[i].attach(&records[i]);
  }

  /// Takes the first tensors of `items`, which has one for each problem, that have the remembered form; returns how
  /// many.
  size_t exchange(PyObject* const* items) {
    size_t done = 0;
    while (done < slots.size() && slots[done].try_exchange(items[done])) ++done;
    return done;
  }

  void refresh_spans() {
    for (size_t i = 0; i < records.size(); ++i) spans[i].begin = reinterpret_cast<uint64_t>(records[i].data);
  }
};

/// The packed tables. Addresses come first: where only they have changed, only they are sent.
class TableLayout {
 public:
  explicit TableLayout(size_t problems) : problems_(problems) {}
  size_t pointers(size_t operand) const { return 8 * problems_ * operand; }
  size_t lds(size_t operand) const { return 8 * problems_ * (kOperands + operand); }
  size_t sizes() const { return lds(kOperands); }
  size_t schedule() const { return (sizes() + 12 * problems_ + 7) / 8 * 8; }
  size_t changing_bytes() const { return pointers(kOperands); }

 private:
  size_t problems_;
};

class GroupedCall : private Recorded<pycutlass_grouped_call>, public Call {
 public:
  explicit GroupedCall(std::shared_ptr<DeviceKernel> kernel)
      : Call(std::move(kernel), &Recorded::record.common, sizeof(pycutlass_grouped_call)) {}

  void set_sizes(py::buffer const& sizes);
  void set_entry(size_t operand, size_t problem, uintptr_t pointer, int64_t ld, uint64_t bytes, uint64_t line,
                 uint64_t pitch, uint64_t alignment);
  void remember_entry(size_t operand, size_t problem, py::object tensor);
  void set_table(uintptr_t table) { table_ = table; }
  void set_device_tables(int problems, int most_tiles, std::array<uintptr_t, 9> const& tables);

  int plan();
  bool update(py::handle a, py::handle b, py::handle c, py::handle d);
  void run(py::handle stream);
  void join(uintptr_t stream);

  /// Whether the last launch went to a stream that the caller named.
  bool was_named() const { return launch_was_named_; }
  /// Whether a graph was captured, which has the addresses of the table and of the operands in it.
  bool captured() const { return captured_ever_; }
  /// Device memory for the tables, and behind them for what the kernel alone writes to.
  size_t table_bytes() const { return scratch_bytes() ? scratch_offset() + scratch_bytes() : image_.size(); }
  pycutlass_operand const& entry(size_t operand, size_t problem) const {
    return operands_.at(operand).records.at(problem);
  }

 protected:
  void prepare(CUstream stream) override;

 private:
  size_t scratch_offset() const { return (image_.size() + kAlignment - 1) / kAlignment * kAlignment; }
  void point_scratch();
  void point_tables(TableLayout const& layout);
  void pack(TableLayout const& layout);
  void pack_pointers(TableLayout const& layout, size_t operand);
  std::vector<pycutlass_operand> const& packed(size_t operand) const;
  bool exchange(py::handle tensors, OperandList& operand, size_t& done);
  bool overlapping();
  void follow_last_launch(CUstream stream);

  std::vector<int32_t> sizes_;
  std::array<OperandList, kOperands> operands_;
  Targets targets_;
  std::vector<unsigned char> image_;  // what the table on the device is to hold; empty where the user keeps the tables
  uintptr_t table_ = 0;
  size_t stale_ = 0;  // bytes at the beginning of the image that the device has not got
  // A captured launch brings its own table along whenever its graph is replayed, so nobody knows what the device holds.
  std::vector<Pinned> captured_;
  bool capturing_ = false, captured_ever_ = false;  // the last launch, and any
  // Where the last launch that was no capture went, or the last work of the host for one.
  CUstream last_ = nullptr;
  bool has_last_ = false, last_was_named_ = false;
  bool launch_was_named_ = false;
};

void GroupedCall::set_sizes(py::buffer const& sizes) {
  py::buffer_info info = sizes.request();
  if (info.itemsize != 4 || info.ndim != 2 || info.shape[1] != 3 || info.strides[1] != 4 || info.strides[0] != 12) {
    raise_error("ArgumentTypeError", "sizes must be a contiguous array of shape (count, 3) and type int32");
  }
  auto const* begin = static_cast<int32_t const*>(info.ptr);
  sizes_.assign(begin, begin + info.size);
  record.problem_count = static_cast<int32_t>(info.shape[0]);
  for (OperandList& operand : operands_) operand.resize(static_cast<size_t>(info.shape[0]));
}

void GroupedCall::set_entry(size_t operand, size_t problem, uintptr_t pointer, int64_t ld, uint64_t bytes,
                            uint64_t line, uint64_t pitch, uint64_t alignment) {
  OperandList& list = operands_.at(operand);
  list.slots.at(problem).set(pointer, ld, 0, bytes, alignment);
  list.spans.at(problem) = {pointer, bytes, line, pitch};
}

void GroupedCall::remember_entry(size_t operand, size_t problem, py::object tensor) {
  operands_.at(operand).slots.at(problem).remember(std::move(tensor));
}

void GroupedCall::set_device_tables(int problems, int most_tiles, std::array<uintptr_t, 9> const& tables) {
  record.problem_count = problems;
  record.most_tiles = most_tiles;
  record.tables.sizes = reinterpret_cast<int32_t const*>(tables[0]);
  for (size_t i = 0; i < kOperands; ++i) {
    record.tables.pointers[i] = reinterpret_cast<void* const*>(tables[1 + i]);
    record.tables.lds[i] = reinterpret_cast<int64_t const*>(tables[1 + kOperands + i]);
  }
}

int GroupedCall::plan() {
  if (sizes_.empty()) {
    point_scratch();
    return Call::plan();
  }
  TableLayout const layout(sizes_.size() / 3);
  record.sizes = sizes_.data();
  record.schedule = nullptr;
  record.scratch = nullptr;
  if (int const status = Call::plan()) return status;
  image_.assign(layout.schedule() + workspace_bytes(), 0);
  point_tables(layout);
  if (workspace_bytes()) record.schedule = image_.data() + layout.schedule();
  int const status = Call::plan();
  pack(layout);
  return status;
}

void GroupedCall::point_scratch() {
  record.scratch = table_ ? reinterpret_cast<void*>(table_ + scratch_offset()) : nullptr;
}

void GroupedCall::point_tables(TableLayout const& layout) {
  point_scratch();
  record.tables.sizes = reinterpret_cast<int32_t const*>(table_ + layout.sizes());
  for (size_t i = 0; i < kOperands; ++i) {
    record.tables.pointers[i] = reinterpret_cast<void* const*>(table_ + layout.pointers(i));
    record.tables.lds[i] = reinterpret_cast<int64_t const*>(table_ + layout.lds(i));
  }
  set_workspace(table_ + layout.schedule());
}

void GroupedCall::pack(TableLayout const& layout) {
  std::memcpy(image_.data() + layout.sizes(), sizes_.data(), sizes_.size() * sizeof(int32_t));
  for (size_t i = 0; i < kOperands; ++i) {
    pack_pointers(layout, i);
    auto* lds = reinterpret_cast<int64_t*>(image_.data() + layout.lds(i));
    for (pycutlass_operand const& entry : packed(i)) *lds++ = entry.ld;
  }
  stale_ = image_.size();
}

void GroupedCall::pack_pointers(TableLayout const& layout, size_t operand) {
  auto* pointers = reinterpret_cast<void**>(image_.data() + layout.pointers(operand));
  for (pycutlass_operand const& entry : packed(operand)) *pointers++ = entry.data;
  if (operand == kD && &packed(kC) == &packed(kD)) pack_pointers(layout, kC);
}

/// What the tables get for an operand. Kernels look C up whether they read it or not; without a C they find D.
std::vector<pycutlass_operand> const& GroupedCall::packed(size_t operand) const {
  std::vector<pycutlass_operand> const& records = operands_[operand].records;
  auto given = [](pycutlass_operand const& entry) { return entry.data != nullptr; };
  bool const stands_in = operand == kC && std::none_of(records.begin(), records.end(), given);
  return stands_in ? operands_[kD].records : records;
}

/// Takes tensors of the remembered forms; false leaves everything as it was. Whoever calls keeps those that were there
/// until no launch needs them.
bool GroupedCall::update(py::handle a, py::handle b, py::handle c, py::handle d) {
  if (image_.empty()) return false;
  std::array<py::handle, kOperands> const given = {a, b, c, d};
  std::array<size_t, kOperands> done{};
  bool fits = true;
  for (size_t i = 0; fits && i < kOperands; ++i) {
    if (!given[i].is_none()) fits = exchange(given[i], operands_[i], done[i]);
  }
  fits = fits && !overlapping();
  for (size_t i = 0; i < kOperands; ++i) {
    if (given[i].is_none()) continue;
    for (size_t problem = 0; !fits && problem < done[i]; ++problem) operands_[i].slots[problem].restore();
    if (fits) pack_pointers(TableLayout(sizes_.size() / 3), i);
    for (OperandSlot& slot : operands_[i].slots) slot.forget_previous();
  }
  if (fits) stale_ = std::max(stale_, TableLayout(sizes_.size() / 3).changing_bytes());
  return fits;
}

/// Takes a list of tensors for one operand; `done` is how many were taken, also where one was not.
bool GroupedCall::exchange(py::handle tensors, OperandList& operand, size_t& done) {
  if (!PyList_Check(tensors.ptr()) && !PyTuple_Check(tensors.ptr())) return false;
  if (static_cast<size_t>(PySequence_Fast_GET_SIZE(tensors.ptr())) != operand.slots.size()) return false;
  done = operand.exchange(PySequence_Fast_ITEMS(tensors.ptr()));
  return done == operand.slots.size();
}

/// Whether a D lies over anything that is read, or over another D. A problem's C may be its D.
bool GroupedCall::overlapping() {
  for (OperandList& operand : operands_) operand.refresh_spans();
  std::vector<Span> const& written = operands_[kD].spans;
  targets_.assign(written);
  if (targets_.overlap_each_other()) return true;
  for (size_t i = 0; i < kD; ++i) {
    if (find_overlap(targets_, written, operands_[i].spans, i == kC).first >= 0) return true;
  }
  return false;
}

void GroupedCall::run(py::handle stream) {
  Call::run(stream);
  if (!capturing_) last_was_named_ = launch_was_named_ = !stream.is_none();
}

/// Puts work of the host on `stream` between the launches: behind the last one, and before the next.
void GroupedCall::join(uintptr_t stream) {
  ContextScope scope(kernel().context());
  follow_last_launch(reinterpret_cast<CUstream>(stream));
  last_ = reinterpret_cast<CUstream>(stream);
  has_last_ = true;
  last_was_named_ = false;
}

bool is_capturing(CUstream stream) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY) return false;  // these cannot be captured
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  check(driver().cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// Brings the table up to date on the stream of the coming launch, which must not meet another one: both would write
/// to the scratch memory.
void GroupedCall::prepare(CUstream stream) {
  if (image_.empty() && !scratch_bytes()) return;
  ContextScope scope(kernel().context());
  capturing_ = is_capturing(stream);
  if (capturing_) {
    captured_ever_ = true;
    if (!image_.empty()) captured_.push_back(send_captured(table_, image_.data(), image_.size(), stream));
    return;
  }
  follow_last_launch(stream);
  size_t const bytes = captured_.empty() ? stale_ : image_.size();
  if (bytes) send(table_, image_.data(), bytes, stream);
  stale_ = 0;
  last_ = stream;
  has_last_ = true;
}

/// Orders `stream` behind the last launch where that was on another one: it reads the table, or has brought it.
void GroupedCall::follow_last_launch(CUstream stream) {
  if (!has_last_ || last_ == stream) return;
  if (last_was_named_) {  // that stream may be gone, its event is not
    check(driver().cuStreamWaitEvent(stream, explicit_end()->handle(), 0), "cuStreamWaitEvent");
    return;
  }
  Event event;
  event.record(last_);
  check(driver().cuStreamWaitEvent(stream, event.handle(), 0), "cuStreamWaitEvent");
}

}  // namespace
}  // namespace pycutlass

void bind_grouped_call(py::module_& m) {
  using namespace pycutlass;
  bind_overlap(m);
  py::class_<GroupedCall, Call>(m, "GroupedCall", "A grouped GEMM ready to be launched any number of times.")
      .def(py::init<std::shared_ptr<DeviceKernel>>(), py::arg("kernel"))
      .def("set_sizes", &GroupedCall::set_sizes, py::arg("sizes"))
      .def("set_entry", &GroupedCall::set_entry, py::arg("operand"), py::arg("problem"), py::arg("pointer"),
           py::arg("ld"), py::arg("bytes"), py::arg("line"), py::arg("pitch"), py::arg("alignment"))
      .def("remember_entry", &GroupedCall::remember_entry, py::arg("operand"), py::arg("problem"), py::arg("tensor"))
      .def("set_table", &GroupedCall::set_table, py::arg("pointer"))
      .def(
          "set_device_tables",
          [](GroupedCall& self, int problems, int most_tiles, py::sequence const& tables) {
            std::array<uintptr_t, 9> addresses{};
            for (size_t i = 0; i < addresses.size(); ++i) addresses[i] = tables[i].cast<uintptr_t>();
            self.set_device_tables(problems, most_tiles, addresses);
          },
          py::arg("problems"), py::arg("most_tiles"), py::arg("tables"))
      .def("plan", &GroupedCall::plan)
      .def("update", &GroupedCall::update, py::arg("A"), py::arg("B"), py::arg("C"), py::arg("D"))
      .def("run", &GroupedCall::run, py::arg("stream") = py::none())
      .def("join", &GroupedCall::join, py::arg("stream"))
      .def_property_readonly("was_named", &GroupedCall::was_named)
      .def_property_readonly("captured", &GroupedCall::captured)
      .def_property_readonly("table_bytes", &GroupedCall::table_bytes)
      .def(
          "entry",
          [](GroupedCall const& self, size_t operand, size_t problem) {
            pycutlass_operand const& entry = self.entry(operand, problem);
            return py::make_tuple(reinterpret_cast<uintptr_t>(entry.data), entry.ld);
          },
          py::arg("operand"), py::arg("problem"));
}
