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
  std::vector<uint64_t> pointers;
  std::vector<uint64_t> next;  // those of an update, until it is known to fit
  std::vector<int64_t> lds;
  std::vector<Span> spans;
  std::vector<TensorForm> forms;
  uint64_t alignment = 1;  // in bytes, a power of two
  py::object tensors;      // what the pointers point into

  void resize(size_t count) {
    pointers.assign(count, 0);
    next.assign(count, 0);
    lds.assign(count, 0);
    spans.assign(count, Span{});
    forms.assign(count, TensorForm());
    tensors = py::list();
  }

  /// Whether there is a tensor of the remembered form for every problem; if so, `next` has their addresses.
  bool read(py::handle given) {
    if (!PyTuple_Check(given.ptr()) || static_cast<size_t>(PyTuple_GET_SIZE(given.ptr())) != forms.size()) return false;
    for (size_t i = 0; i < forms.size(); ++i) {
      py::handle tensor = PyTuple_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i));
      if (!forms[i].read(tensor, next[i]) || (next[i] & (alignment - 1)) != 0) return false;
    }
    return true;
  }

  /// Goes over to what was read; once more goes back.
  void exchange() {
    pointers.swap(next);
    for (size_t i = 0; i < spans.size(); ++i) spans[i].begin = pointers[i];
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
  ~GroupedCall() override;

  void set_sizes(py::buffer const& sizes);
  void set_entry(size_t operand, size_t problem, uintptr_t pointer, int64_t ld, uint64_t bytes, uint64_t line,
                 uint64_t pitch, uint64_t alignment);
  void remember_entry(size_t operand, size_t problem, py::object tensor);
  void set_table(uintptr_t table) { table_ = table; }
  void set_device_tables(int problems, int most_tiles, std::array<uintptr_t, 9> const& tables);

  int plan();
  bool update(py::handle a, py::handle b, py::handle c, py::handle d) override;
  void run(py::handle stream) override;
  void join(uintptr_t stream);

  /// Whether the last launch went to a stream that the caller named.
  bool was_named() const { return launch_was_named_; }
  /// Whether a graph was captured, which has the addresses of the table and of the operands in it.
  bool captured() const { return captured_ever_; }
  /// Device memory for the tables, and behind them for what the kernel alone writes to.
  size_t table_bytes() const { return scratch_bytes() ? scratch_offset() + scratch_bytes() : image_.size(); }
  py::tuple entry(size_t operand, size_t problem) const {
    OperandList const& list = operands_.at(operand);
    return py::make_tuple(list.pointers.at(problem), list.lds.at(problem));
  }

 protected:
  void prepare(CUstream stream) override;

 private:
  size_t scratch_offset() const { return (image_.size() + kAlignment - 1) / kAlignment * kAlignment; }
  void point_scratch();
  void point_tables(TableLayout const& layout);
  void pack(TableLayout const& layout);
  void pack_pointers(TableLayout const& layout, size_t operand);
  OperandList const& packed(size_t operand) const;
  bool overlapping(bool other_targets);
  void follow_last_launch(CUstream stream);

  std::vector<int32_t> sizes_;
  std::array<OperandList, kOperands> operands_;
  Targets targets_;
  bool targets_known_ = false;        // whether they are those of D's spans
  std::vector<unsigned char> image_;  // what the table on the device is to hold; empty where the user keeps the tables
  uintptr_t table_ = 0;
  Outbox outbox_;
  size_t stale_ = 0;  // bytes at the beginning of the image that the device has not got
  // A captured launch brings its own table along whenever its graph is replayed, so nobody knows what the device holds.
  std::vector<Pinned> captured_;
  bool capturing_ = false, captured_ever_ = false;  // the last launch, and any
  // Where the last launch that was no capture went, or the last work of the host for one.
  CUstream last_ = nullptr;
  bool has_last_ = false, last_was_named_ = false;
  bool launch_was_named_ = false;
};

GroupedCall::~GroupedCall() {
  if (!has_last_) return;
  try {
    ContextScope scope(kernel().context());
    if (last_was_named_) {
      outbox_.close(explicit_end());
    } else {
      outbox_.close(last_);
    }
  } catch (std::exception const&) {
    // The driver has ended, as nothing else makes a mark fail; with it the copies.
  }
}

void GroupedCall::set_sizes(py::buffer const& sizes) {
  py::buffer_info info = sizes.request();
  if (info.itemsize != 4 || info.ndim != 2 || info.shape[1] != 3 || info.strides[1] != 4 || info.strides[0] != 12) {
    raise_error("ArgumentTypeError", "sizes must be a contiguous array of shape (count, 3) and type int32");
  }
  auto const* begin = static_cast<int32_t const*>(info.ptr);
  sizes_.assign(begin, begin + info.size);
  record.problem_count = static_cast<int32_t>(info.shape[0]);
  for (OperandList& operand : operands_) operand.resize(static_cast<size_t>(info.shape[0]));
  targets_known_ = false;
}

void GroupedCall::set_entry(size_t operand, size_t problem, uintptr_t pointer, int64_t ld, uint64_t bytes,
                            uint64_t line, uint64_t pitch, uint64_t alignment) {
  OperandList& list = operands_.at(operand);
  list.pointers.at(problem) = pointer;
  list.lds.at(problem) = ld;
  list.spans.at(problem) = {pointer, bytes, line, pitch};
  list.alignment = alignment;
  targets_known_ = false;
}

void GroupedCall::remember_entry(size_t operand, size_t problem, py::object tensor) {
  OperandList& list = operands_.at(operand);
  list.forms.at(problem).remember(tensor);
  py::list(list.tensors).append(std::move(tensor));
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
    std::memcpy(image_.data() + layout.lds(i), packed(i).lds.data(), 8 * sizes_.size() / 3);
  }
  stale_ = image_.size();
}

void GroupedCall::pack_pointers(TableLayout const& layout, size_t operand) {
  std::memcpy(image_.data() + layout.pointers(operand), packed(operand).pointers.data(), 8 * sizes_.size() / 3);
  if (operand == kD && &packed(kC) == &packed(kD)) pack_pointers(layout, kC);
}

/// What the tables get for an operand. Kernels look C up whether they read it or not; without a C they find D.
OperandList const& GroupedCall::packed(size_t operand) const {
  std::vector<uint64_t> const& pointers = operands_[operand].pointers;
  auto given = [](uint64_t pointer) { return pointer != 0; };
  bool const stands_in = operand == kC && std::none_of(pointers.begin(), pointers.end(), given);
  return operands_[stands_in ? kD : operand];
}

/// Takes tuples of tensors of the remembered forms; false leaves everything as it was. Whoever calls keeps those that
/// were there until no launch needs them.
bool GroupedCall::update(py::handle a, py::handle b, py::handle c, py::handle d) {
  if (image_.empty()) return false;
  std::array<py::handle, kOperands> const given = {a, b, c, d};
  auto for_each_given = [&](auto what) {
    for (size_t i = 0; i < kOperands; ++i) {
      if (!given[i].is_none()) what(i);
    }
  };
  bool fits = true;
  for_each_given([&](size_t i) { fits = fits && operands_[i].read(given[i]); });
  if (!fits) return false;
  for_each_given([&](size_t i) { operands_[i].exchange(); });
  if (overlapping(!d.is_none())) {
    for_each_given([&](size_t i) { operands_[i].exchange(); });
    targets_known_ = false;
    return false;
  }
  TableLayout const layout(sizes_.size() / 3);
  for_each_given([&](size_t i) { pack_pointers(layout, i); });
  stale_ = std::max(stale_, layout.changing_bytes());
  for_each_given([&](size_t i) { operands_[i].tensors = py::reinterpret_borrow<py::object>(given[i]); });
  return true;
}

/// Whether a D lies over anything that is read, or over another D. A problem's C may be its D.
bool GroupedCall::overlapping(bool other_targets) {
  std::vector<Span> const& written = operands_[kD].spans;
  if (!targets_known_) {
    targets_.assign(written);
  } else if (other_targets) {
    targets_.follow();
  }
  if ((other_targets || !targets_known_) && targets_.overlap_each_other()) return true;
  targets_known_ = true;
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
  if (bytes) outbox_.send(table_, image_.data(), bytes, stream);
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
      .def("join", &GroupedCall::join, py::arg("stream"))
      .def_property_readonly("was_named", &GroupedCall::was_named)
      .def_property_readonly("captured", &GroupedCall::captured)
      .def_property_readonly("table_bytes", &GroupedCall::table_bytes)
      .def("entry", &GroupedCall::entry, py::arg("operand"), py::arg("problem"));
}
