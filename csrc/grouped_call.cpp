#include "grouped_call.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "bindings.h"

namespace pycutlass {
namespace {

constexpr size_t kOperands = GroupedCall::kOperands;
constexpr size_t kC = 2, kD = 3;
constexpr size_t kAlignment = PYCUTLASS_SCRATCH_ALIGNMENT;  // the beginning of the table has it too

/// Which of M, N, K are the rows and the columns of each operand.
constexpr std::array<std::array<size_t, 2>, kOperands> kExtents = {{{0, 2}, {2, 1}, {0, 1}, {0, 1}}};

}  // namespace

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

GroupedCall::~GroupedCall() {
  if (!has_last_) return;
  try {
    if (last_was_named_) {
      staging_ring_.close(explicit_end());
    } else if (last_.is_capturing()) {
      staging_ring_.abandon();
    } else {
      staging_ring_.close(last_);
    }
  } catch (std::exception const&) {
    // The driver has ended, as nothing else makes a mark fail; with it the copies.
  }
}

OperandExtents GroupedCall::Group::extents(size_t operand) const {
  return {sizes, kExtents[operand][0], kExtents[operand][1]};
}

std::vector<int32_t> read_sizes(py::buffer const& sizes) {
  py::buffer_info info = sizes.request();
  if (info.itemsize != 4 || info.ndim != 2 || info.shape[1] != 3 || info.strides[1] != 4 || info.strides[0] != 12) {
    raise_error("ArgumentTypeError", "sizes must be a contiguous array of shape (count, 3) and type int32");
  }
  auto const* begin = static_cast<int32_t const*>(info.ptr);
  return {begin, begin + info.size};
}

void GroupedCall::set_sizes(py::buffer const& sizes) {
  group_.sizes = read_sizes(sizes);
  size_t const count = group_.sizes.size() / 3;
  record.problem_count = static_cast<int32_t>(count);
  for (OperandList& operand : group_.operands) operand.resize(count);
  targets_known_ = false;
}

/// `entries` has address, bytes, bytes of a line, bytes between lines and leading dimension of each problem's operand;
/// `tensors` what they point into, or None where that is kept elsewhere.
void GroupedCall::set_entries(size_t operand, int element, OperandRule const& rule, py::buffer const& entries,
                              py::tuple const& tensors) {
  kernel().host().check_element(static_cast<int>(operand), element);
  OperandList& list = group_.operands.at(operand);
  py::buffer_info info = entries.request();
  auto const count = static_cast<py::ssize_t>(list.spans.size());
  bool const fits = info.itemsize == 8 && info.ndim == 2 && info.shape[0] == count && info.shape[1] == 5;
  if (!fits || info.strides[1] != 8 || info.strides[0] != 40 || static_cast<py::ssize_t>(tensors.size()) != count) {
    raise_error("ArgumentTypeError", "entries must be a contiguous array of shape (problems, 5) and type uint64");
  }
  auto const* entry = static_cast<uint64_t const*>(info.ptr);
  for (size_t i = 0; i < list.spans.size(); ++i, entry += 5) {
    list.place(i, {entry[0], entry[1], entry[2], entry[3]}, static_cast<int64_t>(entry[4]));
  }
  list.rule = rule;
  list.remember(tensors, operand == kD);
  targets_known_ = false;
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
  if (group_.sizes.empty()) {
    point_scratch();
    return Call::plan();
  }
  TableLayout const layout(group_.sizes.size() / 3);
  record.sizes = group_.sizes.data();
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

void GroupedCall::adopt(Call& other) noexcept {
  auto& prepared = static_cast<GroupedCall&>(other);
  Call::adopt(other);
  std::swap(group_, prepared.group_);  // vectors keep their memory, which the record points to
  image_.swap(prepared.image_);
  targets_known_ = false;
  table_ = prepared.table_;
  table_capacity_ = prepared.table_capacity_;
  stale_ = image_.size();
}

size_t GroupedCall::scratch_offset() const { return (image_.size() + kAlignment - 1) / kAlignment * kAlignment; }

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
  std::memcpy(image_.data() + layout.sizes(), group_.sizes.data(), group_.sizes.size() * sizeof(int32_t));
  for (size_t i = 0; i < kOperands; ++i) {
    pack_pointers(layout, i);
    std::memcpy(image_.data() + layout.lds(i), packed(i).lds.data(), 8 * group_.sizes.size() / 3);
  }
  stale_ = image_.size();
}

void GroupedCall::pack_pointers(TableLayout const& layout, size_t operand) {
  std::memcpy(image_.data() + layout.pointers(operand), packed(operand).pointers.data(), 8 * group_.sizes.size() / 3);
  if (operand == kD && &packed(kC) == &packed(kD)) pack_pointers(layout, kC);
}

/// What the tables get for an operand. Kernels look C up whether they read it or not; without a C they find D.
OperandList const& GroupedCall::packed(size_t operand) const {
  std::vector<uint64_t> const& pointers = group_.operands[operand].pointers;
  auto given = [](uint64_t pointer) { return pointer != 0; };
  bool const stands_in = operand == kC && std::none_of(pointers.begin(), pointers.end(), given);
  return group_.operands[stands_in ? kD : operand];
}

/// Takes tuples of tensors of the remembered forms; false leaves everything as it was. Whoever calls keeps those that
/// were there until no launch needs them.
bool GroupedCall::update(PyObject* const* tensors, size_t count) {
  check_unused();
  if (image_.empty() || count != kOperands) return false;
  std::array<py::handle, kOperands> given;
  std::copy(tensors, tensors + count, given.begin());
  auto for_each_given = [&](auto what) {
    for (size_t i = 0; i < kOperands; ++i) {
      if (!given[i].is_none()) what(i);
    }
  };
  bool fits = true;
  try {
    Looking const looking = look();
    for_each_given([&](size_t i) { fits = fits && group_.operands[i].read(given[i]); });
  } catch (py::error_already_set const&) {  // what a tensor raises when it is asked: the slow path explains
    fits = false;
  }
  check_unused();  // a launch may have begun meanwhile, in another thread
  if (!fits) return false;
  for_each_given([&](size_t i) { group_.operands[i].exchange(); });
  bool apart = false;
  try {
    apart = !overlapping(!given[kD].is_none());
  } catch (std::bad_alloc const&) {  // the slow path tells
  }
  if (!apart) {
    for_each_given([&](size_t i) { group_.operands[i].exchange(); });
    targets_known_ = false;
    return false;
  }
  TableLayout const layout(group_.sizes.size() / 3);
  for_each_given([&](size_t i) { pack_pointers(layout, i); });
  stale_ = std::max(stale_, layout.changing_bytes());
  for_each_given([&](size_t i) { group_.operands[i].keep(given[i]); });
  return true;
}

/// Takes other sizes, of as many problems as there is room for in the table, and tuples of tensors that they fit; None
/// keeps an operand. Where any tensor is not plainly right it returns false and leaves everything as it was: whoever
/// calls looks closer, and explains. It also keeps the tensors that were there until no launch needs them.
bool GroupedCall::resize(py::buffer const& sizes, std::array<py::handle, kOperands> const& given) {
  check_unused();
  if (image_.empty()) return false;
  Group group;
  group.sizes = read_sizes(sizes);
  try {
    Looking const looking = look();
    if (!take(group, given)) return false;
  } catch (py::error_already_set const&) {  // as in update
    return false;
  }
  check_unused();  // as in update
  Planned const planned_before = planned();
  auto const record_before = record;
  std::vector<unsigned char> image_before = std::exchange(image_, {});
  auto go_back = [&] {
    go_over_to(group);
    record = record_before;
    go_back_to(planned_before);
    image_.swap(image_before);
    stale_ = image_.size();
  };
  bool fits = false;
  go_over_to(group);
  try {
    fits = !overlapping(true) && fits_table();
  } catch (...) {  // no memory, or the driver has failed: nothing has changed
    go_back();
    throw;
  }
  if (!fits) go_back();
  return fits;
}

/// Makes the operands of `group` from those that are given and, where its sizes leave them alone, from the present.
bool GroupedCall::take(Group& group, std::array<py::handle, kOperands> const& given) const {
  for (size_t i = 0; i < kOperands; ++i) {
    OperandList const& present = group_.operands[i];
    if (i == kC && present.tensors.is_none()) {  // it is not read
      group.operands[i].resize(group.count());
      continue;
    }
    OperandExtents const extents = group.extents(i), before = group_.extents(i);
    if (!present.remembers_all()) return false;
    if (given[i].is_none() && extents == before) {
      group.operands[i] = present;
    } else if (!group.operands[i].take(present, given[i].is_none() ? present.tensors : given[i], extents)) {
      return false;
    }
  }
  return true;
}

/// Goes over to `group`, which becomes what was there; once more goes back.
void GroupedCall::go_over_to(Group& group) {
  std::swap(group_, group);
  record.problem_count = static_cast<int32_t>(group_.count());
  targets_known_ = false;
}

bool GroupedCall::start(Group& group) {
  go_over_to(group);
  return !overlapping(true);
}

bool GroupedCall::fits_table() { return plan() == 0 && table_bytes() <= table_capacity_; }

/// Whether a D lies over anything that is read, or over another D. A problem's C may be its D.
bool GroupedCall::overlapping(bool other_targets) {
  std::vector<Span> const& written = group_.operands[kD].spans;
  if (!targets_known_) {
    targets_.assign(written);
  } else if (other_targets) {
    targets_.follow();
  }
  if ((other_targets || !targets_known_) && targets_.overlap_each_other()) return true;
  targets_known_ = true;
  for (size_t i = 0; i < kD; ++i) {
    if (find_overlap(targets_, written, group_.operands[i].spans, i == kC).first >= 0) return true;
  }
  return false;
}

void GroupedCall::check_unmoved() const {
  Call::check_unmoved();
  for (size_t i = 0; i < kOperands; ++i) group_.operands[i].check_unmoved("ABCD"[i]);
}

void GroupedCall::count_writes() const {
  for (TensorGuard const& guard : group_.operands[kD].guards) guard.count_write();
}

py::list GroupedCall::storages() const {
  py::list storages = Call::storages();
  for (OperandList const& operand : group_.operands) {
    for (TensorGuard const& guard : operand.guards) storages.append(guard.storage());
  }
  return storages;
}

void GroupedCall::run(py::handle stream) {
  Call::run(stream);
  if (!capturing_) last_was_named_ = launch_was_named_ = !stream.is_none();
}

/// Puts work of the host on `stream` between the launches: behind the last one, and before the next.
void GroupedCall::join(Stream const& stream) {
  follow_last_launch(stream);
  last_ = stream;
  has_last_ = true;
  last_was_named_ = false;
}

/// Brings the table up to date on the stream of the coming launch, which must not meet another one: both would write
/// to the scratch memory.
void GroupedCall::prepare(Stream const& stream, bool capturing) {
  if (image_.empty() && !scratch_bytes()) return Call::prepare(stream, capturing);
  capturing_ = capturing;
  if (capturing_) {
    captured_ever_ = true;
    if (!image_.empty()) captured_.push_back(send_captured(table_, image_.data(), image_.size(), stream));
    return;
  }
  follow_last_launch(stream);
  size_t const bytes = captured_.empty() ? stale_ : image_.size();
  if (bytes) staging_ring_.send(table_, image_.data(), bytes, stream);
  stale_ = 0;
  last_ = stream;
  has_last_ = true;
}

void GroupedCall::follow_other_stream(Stream const& stream) {
  if (last_was_named_) {  // that stream may be gone, its event is not
    stream.wait_for(*explicit_end());
  } else {
    stream.follow(last_);
  }
}

}  // namespace pycutlass

void bind_grouped_call(py::module_& m) {
  using namespace pycutlass;
  bind_overlap(m);
  bind_operand_list(m);
  py::class_<GroupedCall, Call>(m, "GroupedCall", "A grouped GEMM ready to be launched any number of times.")
      .def(py::init<std::shared_ptr<DeviceKernel>>(), py::arg("kernel"), py::keep_alive<1, 2>())
      .def("set_sizes", &GroupedCall::set_sizes, py::arg("sizes"))
      .def("set_entries", &GroupedCall::set_entries, py::arg("operand"), py::arg("element"), py::arg("rule"),
           py::arg("entries"), py::arg("tensors"))
      .def("set_table", &GroupedCall::set_table, py::arg("pointer"), py::arg("bytes"))
      .def(
          "resize",
          [](GroupedCall& self, py::buffer const& sizes, py::handle a, py::handle b, py::handle c, py::handle d) {
            return self.resize(sizes, {a, b, c, d});
          },
          py::arg("sizes"), py::arg("A"), py::arg("B"), py::arg("C"), py::arg("D"))
      .def(
          "set_device_tables",
          [](GroupedCall& self, int problems, int most_tiles, py::sequence const& tables) {
            std::array<uintptr_t, 9> addresses{};
            for (size_t i = 0; i < addresses.size(); ++i) addresses[i] = tables[i].cast<uintptr_t>();
            self.set_device_tables(problems, most_tiles, addresses);
          },
          py::arg("problems"), py::arg("most_tiles"), py::arg("tables"))
      .def("plan", [](GroupedCall& call) { return Call::status_of(call.plan()); })
      .def("join", &GroupedCall::join, py::arg("stream"))
      .def_property_readonly("captured", &GroupedCall::captured)
      .def_property_readonly("device_bytes", &GroupedCall::table_bytes)
      .def_property_readonly("image", &GroupedCall::image, "What the table on the device is to hold. For tests.")
      .def("entry", &GroupedCall::entry, py::arg("operand"), py::arg("problem"));
}
