#include "overlap.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "driver.h"

namespace py = pybind11;

namespace pycutlass {

namespace {

__extension__ using Wide = __int128;  // products of two distances in memory

Wide rounded_up(Wide value, Wide step) { return (value + step - 1) / step; }

Wide remainder(Wide value, Wide modulus) { return (value % modulus + modulus) % modulus; }

/// The least i >= 0 for which (step * i) mod modulus lies in [low, high], or -1; 0 <= low <= high < modulus. As in
/// Euclid's algorithm, the question is asked again of smaller numbers: which multiple of the modulus is reached when.
Wide first_within(Wide step, Wide modulus, Wide low, Wide high) {
  step %= modulus;
  if (low == 0) return 0;
  if (step == 0) return -1;
  Wide const before_the_first_turn = rounded_up(low, step);
  if (step * before_the_first_turn <= high) return before_the_first_turn;
  Wide const turns = first_within(modulus, step, remainder(-high, step), remainder(-low, step));
  return turns < 0 ? -1 : rounded_up(low + modulus * turns, step);
}

}  // namespace

/// How many lines begin before `offset` bytes behind the first.
int64_t Span::lines_before(int64_t offset) const {
  if (offset <= 0) return 0;
  return pitch ? static_cast<int64_t>(std::min<Wide>(count(), rounded_up(offset, static_cast<Wide>(pitch)))) : 1;
}

bool Span::overlaps(Span const& other) const {
  if (begin >= other.end() || other.begin >= end()) return false;
  auto const length = static_cast<int64_t>(line), other_length = static_cast<int64_t>(other.line);
  auto const step = static_cast<int64_t>(pitch), other_step = static_cast<int64_t>(other.pitch);
  // Of this one's lines, some begin before all lines of the other, some between two of them, and some behind the last.
  int64_t const offset = static_cast<int64_t>(begin - other.begin);
  int64_t const last = (other.count() - 1) * other_step;
  int64_t const between = lines_before(-offset), behind = lines_before(last - offset);
  auto distance = [&](int64_t number) { return offset + number * step; };
  if (between > 0 && distance(between - 1) > -length) return true;
  if (behind < count() && distance(behind) < last + other_length) return true;
  if (between >= behind) return false;
  // One that begins between two meets the line before it, or the one behind it, by where in a pitch it begins.
  if (length + other_length > other_step) return true;
  Wide const low = remainder(Wide(1) - length - distance(between), other_step);
  Wide const high = remainder(Wide(other_length) - 1 - distance(between), other_step);
  if (low > high) return true;  // the first does: 0 is within
  Wide const hit = first_within(step, other_step, low, high);
  return hit >= 0 && hit < behind - between;
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
      [](py::buffer const& targets, py::buffer const& sources, bool in_place) -> std::optional<std::pair<int, int>> {
        std::vector<Span> const written = read_spans(targets), read = read_spans(sources);
        Targets sorted;
        sorted.assign(written);
        auto [target, source] = find_overlap(sorted, written, read, in_place);
        if (target < 0) return std::nullopt;
        return std::pair<int, int>(target, source);
      },
      py::arg("targets"), py::arg("sources"), py::arg("in_place") = false,
      "Numbers of a target and a source that share memory, or None. Rows are begin, bytes, line and pitch in bytes.");
}

}  // namespace pycutlass
