#include "overlap.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "driver.h"
#include "wide.h"

namespace py = pybind11;

namespace pycutlass {

namespace {

constexpr int64_t kMaxWork = 1'000'000;  // pairs of matrices, some tens of milliseconds

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

/// The same bytes as a single matrix, where its lines come in one step from the first to the last.
SpanBatch SpanBatch::merged() const {
  if (count == 1 || step == 0) return {span, 1, 0};
  auto const pitch = static_cast<int64_t>(span.pitch), line = static_cast<int64_t>(span.line);
  auto const bytes = static_cast<int64_t>(span.bytes), length = (count - 1) * step + bytes;
  auto const whole = [&](int64_t long_line, int64_t long_pitch) {
    return SpanBatch{{span.begin, static_cast<uint64_t>(length), static_cast<uint64_t>(long_line),
                      static_cast<uint64_t>(long_pitch)}};
  };
  if (pitch == 0 || pitch == line) return step <= bytes ? whole(length, 0) : whole(bytes, step);
  if (step == span.count() * pitch) return whole(line, pitch);
  int64_t const side_by_side = (count - 1) * step + line;
  if (step <= line && side_by_side <= pitch) return whole(side_by_side, pitch);
  return *this;
}

/// Whether a matrix shares a byte with one of these, as far as `work` lasts.
bool SpanBatch::meets(Span const& one, int64_t& work) const {
  if (count == 1) return --work < 0 || one.overlaps(span);
  auto const apart = [](uint64_t from, uint64_t to) { return static_cast<Wide>(to) - static_cast<Wide>(from); };
  Wide const before = apart(span.end(), one.begin), end = apart(span.begin, one.end());
  Wide const last = std::min<Wide>(count, rounded_up(end, step));  // which begins behind it
  for (Wide i = before < 0 ? 0 : before / step + 1; i < last; ++i) {
    Span shifted = span;
    shifted.begin += static_cast<uint64_t>(i) * static_cast<uint64_t>(step);
    if (--work < 0 || shifted.overlaps(one)) return true;
  }
  return false;
}

bool SpanBatch::overlaps(SpanBatch const& other) const {
  SpanBatch few = merged(), many = other.merged();
  if (few.count > many.count) std::swap(few, many);
  int64_t work = kMaxWork;
  if (few.step == many.step) {  // then only how far apart two are counts, not which they are
    few.span.begin += static_cast<uint64_t>((few.count - 1) * few.step);
    many.count += few.count - 1;
    return many.meets(few.span, work);
  }
  for (int64_t i = 0; i < few.count; ++i, few.span.begin += static_cast<uint64_t>(few.step)) {
    if (many.meets(few.span, work)) return true;
  }
  return false;
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

constexpr uint64_t kMaxBytes = uint64_t(1) << 62;

/// A number of bytes or matrices; what is larger than anything in memory is as good as kMaxBytes.
uint64_t read_bytes(py::handle given) {
  uint64_t const bytes = PyLong_AsUnsignedLongLong(given.ptr());
  if (!PyErr_Occurred()) return bytes;
  if (!PyErr_ExceptionMatches(PyExc_OverflowError)) throw py::error_already_set();
  PyErr_Clear();
  return kMaxBytes;
}

SpanBatch read_batch(std::array<py::object, 6> const& given) {
  Span const span{read_bytes(given[0]), read_bytes(given[1]), read_bytes(given[2]), read_bytes(given[3])};
  uint64_t const count = read_bytes(given[4]), step = read_bytes(given[5]);
  if (span.bytes + static_cast<Wide>(count) * step >= kMaxBytes) return {{span.begin, kMaxBytes, kMaxBytes, 0}};
  return {span, static_cast<int64_t>(count), static_cast<int64_t>(step)};
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
  using Six = std::tuple<py::object, py::object, py::object, py::object, py::object, py::object>;
  m.def(
      "share_memory",
      [](Six const& one, Six const& other) {
        auto const batch = [](auto const&... each) { return read_batch({each...}); };
        return std::apply(batch, one).overlaps(std::apply(batch, other));
      },
      py::arg("one"), py::arg("other"),
      "Whether two batches of matrices share a byte, or may where that is too hard to find out. Each is begin, bytes, "
      "line and pitch of a matrix in bytes, how many there are, and bytes from one to the next.");
}

}  // namespace pycutlass
