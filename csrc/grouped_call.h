// Grouped GEMM on the launch fast path. What the kernel reads of its problems - addresses, leading dimensions, sizes
// and the schedule - is packed in host memory and sent to the device in one copy, before the launch that needs it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "launch.h"
#include "operand_list.h"
#include "overlap.h"
#include "staging.h"

namespace pycutlass {

class TableLayout;

class GroupedCall : private Recorded<pycutlass_grouped_call>, public Call {
 public:
  static constexpr size_t kOperands = 4;  // A, B, C, D

  /// Sizes and operands of all problems.
  struct Group {
    std::vector<int32_t> sizes;
    std::array<OperandList, kOperands> operands;

    size_t count() const { return sizes.size() / 3; }
    /// Rows and columns of an operand in all problems.
    OperandExtents extents(size_t operand) const;
  };

  explicit GroupedCall(std::shared_ptr<DeviceKernel> kernel)
      : Call(std::move(kernel), &Recorded::record.common, sizeof(pycutlass_grouped_call)) {}
  ~GroupedCall() override;

  void set_sizes(pybind11::buffer const& sizes);
  void set_entries(size_t operand, int element, OperandRule const& rule, pybind11::buffer const& entries,
                   pybind11::tuple const& tensors);
  void set_table(uintptr_t table, size_t bytes) {
    table_ = table;
    table_capacity_ = bytes;
  }
  void set_device_tables(int problems, int most_tiles, std::array<uintptr_t, 9> const& tables);

  /// Takes problems whose operands were found to fit their rules; false where a D lies over anything else.
  bool start(Group& group);
  int plan() override;
  void adopt(Call& other) noexcept override;
  bool update(PyObject* const* tensors, size_t count) override;
  bool resize(pybind11::buffer const& sizes, std::array<pybind11::handle, kOperands> const& given);
  void run(pybind11::handle stream) override;
  void join(Stream const& stream);

  /// Whether the last launch went to a stream that the caller named.
  bool was_named() const override { return launch_was_named_; }
  void check_unmoved() const override;
  /// Whether a graph was captured, which has the addresses of the table and of the operands in it.
  bool captured() const { return captured_ever_; }
  /// Device memory for the tables, and behind them for what the kernel alone writes to.
  size_t table_bytes() const { return scratch_bytes() ? scratch_offset() + scratch_bytes() : image_.size(); }
  /// What the table on the device is to hold, for tests.
  pybind11::bytes image() const { return {reinterpret_cast<char const*>(image_.data()), image_.size()}; }
  std::pair<uint64_t, int64_t> entry(size_t operand, size_t problem) const {
    OperandList const& list = group_.operands.at(operand);
    return {list.pointers.at(problem), list.lds.at(problem)};
  }

 protected:
  void prepare(Stream const& stream, bool capturing) override;
  void count_writes() const override;
  pybind11::list storages() const override;

 private:
  size_t scratch_offset() const;
  void point_scratch();
  void point_tables(TableLayout const& layout);
  void pack(TableLayout const& layout);
  void pack_pointers(TableLayout const& layout, size_t operand);
  OperandList const& packed(size_t operand) const;
  bool overlapping(bool other_targets);
  bool fits_table();
  /// Orders `stream` behind the last launch where that was on another one: it reads the table, or has brought it.
  void follow_last_launch(Stream const& stream) {
    if (has_last_ && !(last_ == stream)) follow_other_stream(stream);
  }
  void follow_other_stream(Stream const& stream);

  bool take(Group& group, std::array<pybind11::handle, kOperands> const& given) const;
  void go_over_to(Group& group);

  Group group_;
  Targets targets_;
  bool targets_known_ = false;        // whether they are those of D's spans
  std::vector<unsigned char> image_;  // what the table on the device is to hold; empty where the user keeps the tables
  uintptr_t table_ = 0;
  size_t table_capacity_ = 0;
  StagingRing staging_ring_;
  size_t stale_ = 0;  // bytes at the beginning of the image that the device lacks
  // A captured launch brings its own table along whenever its graph is replayed, so nobody knows what the device holds.
  std::vector<Pinned> captured_;
  bool capturing_ = false, captured_ever_ = false;  // the last launch, and any
  // Where the last launch that was no capture went, or the last work of the host for one.
  Stream last_;
  bool has_last_ = false, last_was_named_ = false;
  bool launch_was_named_ = false;
};

/// M, N and K of all problems, of an array of shape (count, 3).
std::vector<int32_t> read_sizes(pybind11::buffer const& sizes);

}  // namespace pycutlass
