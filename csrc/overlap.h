// Whether matrices share memory, for hundreds of them at once.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace pycutlass {

/// Where a matrix lies: from the first byte to the end of the last, in lines of `line` bytes that begin `pitch` bytes
/// apart (0 for a single line).
struct Span {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t line = 0;
  uint64_t pitch = 0;

  uint64_t end() const { return begin + bytes; }
  /// Whether the two share a byte. Lines that interleave, as columns of one allocation do, need not.
  bool overlaps(Span const& other) const;
  bool operator==(Span const& other) const;
  int64_t count() const { return pitch ? static_cast<int64_t>((bytes - line) / pitch) + 1 : 1; }

 private:
  int64_t lines_before(int64_t offset) const;
};

/// Matrices of a batch, `step` bytes apart.
struct SpanBatch {
  Span span;  // of the first
  int64_t count = 1;
  int64_t step = 0;

  /// Whether the two share a byte. Where that is too hard to find out, they may, and the answer is yes.
  bool overlaps(SpanBatch const& other) const;

 private:
  SpanBatch merged() const;
  bool meets(Span const& one, int64_t& work) const;
};

/// Bytes from the first to the last of some matrices; none where `end` is not behind `begin`.
struct Bounds {
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;

  void add(Span const& span);
  bool overlaps(Bounds const& other) const { return begin < other.end && other.begin < end; }
};

/// Matrices that will be written, which must stay where they are in memory.
class Targets {
 public:
  void assign(std::vector<Span> const& spans);
  /// The spans begin elsewhere; their extents are those of before.
  void follow();
  Bounds bounds() const;
  /// The number of a target that overlaps `span`, or -1. Target `except` is left out. `near` is where to look first,
  /// and becomes where to look first for a neighbour.
  int overlapping(Span const& span, int except, size_t& near) const;
  /// Whether two targets overlap.
  bool overlap_each_other() const;

 private:
  size_t count_before(uint64_t end, size_t near) const;

  struct Entry {
    uint64_t begin;
    uint64_t furthest;  // end of this and all entries before it
    int number;
  };

  std::vector<Span> const* spans_ = nullptr;
  std::vector<Entry> entries_;  // by beginning
};

/// A target and a source that overlap, or {-1, -1}. Where `in_place`, source i may be target i itself.
std::pair<int, int> find_overlap(Targets const& targets, std::vector<Span> const& target_spans,
                                 std::vector<Span> const& sources, bool in_place);

/// Adds find_overlap to the module.
void bind_overlap(pybind11::module_& m);

}  // namespace pycutlass
