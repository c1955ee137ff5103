#include "overlap.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "driver.h"

namespace py = pybind11;

namespace pycutlass {

bool Span::overlaps(Span const& other) const {
  if (begin >= other.end() || other.begin >= end()) return false;
  uint64_t const least = !pitch ? other.pitch : !other.pitch ? pitch : std::min(pitch, other.pitch);
  if (least && pitch % least == 0 && other.pitch % least == 0) {
    // How far this one's lines begin behind the other's; the difference wraps around, which the remainder must not see.
    uint64_t const ahead =
        begin >= other.begin ? (begin - other.begin) % least : (least - (other.begin - begin) % least) % least;
    if (ahead >= other.line && ahead + line <= least) return false;
  }
  return true;
}

bool Span::operator==(Span const& other) const {
  return begin == other.begin && bytes == other.bytes && line == other.line && pitch == other.pitch;
}

void Bounds::add(Span const& span) {
  if (!span.bytes) return;
  begin = std::min(begin, span.begin);
  end = std::max(end, span.end());
}

void Targets::assign(std::vector<Span> const& spans) {
  spans_ = &spans;
  entries_.clear();
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].bytes) entries_.push_back({0, 0, static_cast<int>(i)});
  }
  follow();
}

void Targets::follow() {
  // Tensors that take the place of others often lie in the same order, in which the entries are since the last time.
  bool sorted = true;
  uint64_t before = 0;
  for (Entry& entry : entries_) {
    Span const& span = (*spans_)[static_cast<size_t>(entry.number)];
    sorted = sorted && before <= span.begin;
    entry.begin = before = span.begin;
    entry.furthest = span.end();
  }
  if (!sorted) {
    std::sort(entries_.begin(), entries_.end(),
              [](Entry const& left, Entry const& right) { return left.begin < right.begin; });
  }
  uint64_t furthest = 0;
  for (Entry& entry : entries_) entry.furthest = furthest = std::max(furthest, entry.furthest);
}

Bounds Targets::bounds() const {
  return entries_.empty() ? Bounds() : Bounds{entries_.front().begin, entries_.back().furthest};
}

/// How many targets begin before `end`. Matrices that are looked at one after another often lie one after another, so
/// `near`, which was the answer for the one before, is tried first.
size_t Targets::count_before(uint64_t end, size_t near) const {
  for (int steps = 0; steps < 4; ++steps) {
    if (near < entries_.size() && entries_[near].begin < end) {
      ++near;
    } else if (near > 0 && entries_[near - 1].begin >= end) {
      --near;
    } else {
      return near;
    }
  }
  auto const found = std::lower_bound(entries_.begin(), entries_.end(), end,
                                      [](Entry const& left, uint64_t right) { return left.begin < right; });
  return static_cast<size_t>(found - entries_.begin());
}

int Targets::overlapping(Span const& span, int except, size_t& near) const {
  if (!span.bytes) return -1;
  near = count_before(span.end(), near);
  for (size_t i = near; i > 0 && entries_[i - 1].furthest > span.begin; --i) {
    int const number = entries_[i - 1].number;
    if (number != except && (*spans_)[static_cast<size_t>(number)].overlaps(span)) return number;
  }
  return -1;
}

bool Targets::overlap_each_other() const {
  for (size_t i = 1; i < entries_.size(); ++i) {
    if (entries_[i].begin >= entries_[i - 1].furthest) continue;
    int const number = entries_[i].number;
    size_t near = i;
    if (overlapping((*spans_)[static_cast<size_t>(number)], number, near) >= 0) return true;
  }
  return false;
}

std::pair<int, int> find_overlap(Targets const& targets, std::vector<Span> const& target_spans,
                                 std::vector<Span> const& sources, bool in_place) {
  // As a rule what is read lies before or behind all that is written.
  Bounds bounds;
  for (Span const& source : sources) bounds.add(source);
  if (!bounds.overlaps(targets.bounds())) return {-1, -1};
  size_t near = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    bool const itself = in_place && i < target_spans.size() && sources[i] == target_spans[i];
    int const target = targets.overlapping(sources[i], itself ? static_cast<int>(i) : -1, near);
    if (target >= 0) return {target, static_cast<int>(i)};
  }
  return {-1, -1};
}

namespace {

std::vector<Span> read_spans(py::buffer const& buffer) {
  py::buffer_info info = buffer.request();
  if (info.itemsize != 8 || info.ndim != 2 || info.shape[1] != 4 || info.strides[1] != 8 || info.strides[0] != 32) {
    raise_error("ArgumentTypeError", "spans must be a contiguous array of shape (count, 4) and type uint64");
  }
  std::vector<Span> spans(static_cast<size_t>(info.shape[0]));
  if (!spans.empty()) std::memcpy(spans.data(), info.ptr, spans.size() * sizeof(Span));
  return spans;
}

}  // namespace

void bind_overlap(py::module_& m) {
  m.def(
      "find_overlap",
      [](py::buffer const& targets, py::buffer const& sources, bool in_place) -> py::object {
        std::vector<Span> const written = read_spans(targets), read = read_spans(sources);
        Targets sorted;
        sorted.assign(written);
        auto [target, source] = find_overlap(sorted, written, read, in_place);
        return target < 0 ? py::object(py::none()) : py::object(py::make_tuple(target, source));
      },
      py::arg("targets"), py::arg("sources"), py::arg("in_place") = false,
      "Numbers of a target and a source that share memory, or None. Rows are begin, bytes, line and pitch in bytes.");
}

}  // namespace pycutlass
