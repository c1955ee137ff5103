// Partial results that threadblocks pass to each other through the workspace, word by word and without fences, and what
// the lanes of a warp join. Why: function_reduction.h.
#pragma once

#include "pycutlass/reduction_kinds.h"

namespace pycutlass {

/// A line of tiles across (axis 0), one down (1), or all (2), of one matrix; and a tile that is in it.
struct LineOfTiles {
  int axis;
  int64_t batch;
  int tile_m, tile_n;
};

/// The partial results of all tiles, in the workspace: for each reduction a line for each tile across its own. And
/// counters of the tiles that are done: of each line across, of each one down, and of all.
template <typename Number>
struct Partials {
  int tiles_m, tiles_n, tile_m, tile_n;
  int64_t batches;
  unsigned* first_counter;
  Number* first_number;

  CUTLASS_HOST_DEVICE int64_t counters() const { return batches * counters_of_batch(); }
  /// Which line of tiles has the i-th of them; and the other way round.
  CUTLASS_HOST_DEVICE LineOfTiles line(int64_t i) const {
    int64_t const batch = i / counters_of_batch();
    int const place = int(i - batch * counters_of_batch());
    if (place < tiles_m) return {0, batch, place, 0};
    if (place < tiles_m + tiles_n) return {1, batch, 0, place - tiles_m};
    return {2, batch, 0, 0};
  }
  CUTLASS_HOST_DEVICE int64_t number(LineOfTiles const& line) const {
    int64_t const places[3] = {line.tile_m, int64_t(tiles_m) + line.tile_n, counters_of_batch() - 1};
    return line.batch * counters_of_batch() + places[line.axis];
  }
  /// A word for each line, behind the counters: the next one in a list of those that some threads have to join.
  CUTLASS_HOST_DEVICE unsigned* next(int64_t i) const { return first_counter + counters() + i; }
  CUTLASS_HOST_DEVICE unsigned* counter(int axis, int64_t batch, int tile_m, int tile_n) const {
    return first_counter + number({axis, batch, tile_m, tile_n});
  }
  /// Tiles of a line across, of one down, or of all.
  CUTLASS_HOST_DEVICE unsigned tiles_of_line(int axis) const {
    unsigned const across = tiles_n, down = tiles_m;
    return axis == 0 ? across : axis == 1 ? down : across * down;
  }
  CUTLASS_HOST_DEVICE Number* numbers(int64_t offset) const { return first_number + offset; }

 private:
  CUTLASS_HOST_DEVICE int64_t counters_of_batch() const { return int64_t(tiles_m) + tiles_n + 1; }
};

/// Where a problem of a group has its counters and its partial results, behind those of the first.
struct ReductionPlace {
  int64_t counters, numbers;
};

/// Those of all problems of a group, and a table of their places; null elsewhere.
template <typename Number>
struct GroupPartials {
  ReductionPlace const* places;
  unsigned* first_counter;
  Number* first_number;
};

namespace function {

// What threads do together. On the host nobody calls these but tests, which define them.
#if PYCUTLASS_DEVICE_SIDE
template <typename Number>
CUTLASS_DEVICE Number exchanged(Number value, int lanes) {
  return __shfl_xor_sync(0xffffffffu, value, lanes);
}
/// Counts up to `last` and then from 0 again, and returns what was before. Of an addition a compiler would make one for
/// all threads of a warp that are there, and wait for its answer at once.
CUTLASS_DEVICE unsigned count_up(unsigned* counter, unsigned last) {
  unsigned before;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
  return before;
}
/// Words that threadblocks pass to each other, each for itself.
CUTLASS_DEVICE void pass_word(uint32_t* address, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
}
CUTLASS_DEVICE void pass_word(uint64_t* address, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
}
CUTLASS_DEVICE uint32_t passed_word(uint32_t const* address) {
  uint32_t word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
  return word;
}
CUTLASS_DEVICE uint64_t passed_word(uint64_t const* address) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(address) : "memory");
  return word;
}
/// 16 bytes of them; and 0 in their places.
CUTLASS_DEVICE void passed_words(uint32_t const* address, uint32_t (&words)[4]) {
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(address)
               : "memory");
}
CUTLASS_DEVICE void passed_words(uint64_t const* address, uint64_t (&words)[2]) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(words[0]), "=l"(words[1])
               : "l"(address)
               : "memory");
}
CUTLASS_DEVICE void pass_none(uint32_t* address) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(address), "r"(0) : "memory");
}
CUTLASS_DEVICE void pass_none(uint64_t* address) {
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %1};" ::"l"(address), "l"(uint64_t(0)) : "memory");
}
#else
template <typename Number>
Number exchanged(Number value, int lanes);
unsigned count_up(unsigned* counter, unsigned last);
template <typename Word>
void pass_word(Word* address, Word word);
template <typename Word>
Word passed_word(Word const* address);
template <typename Word, int kVector>
void passed_words(Word const* address, Word (&words)[kVector]) {
  for (int i = 0; i < kVector; ++i) words[i] = passed_word(address + i);
}
template <typename Word>
void pass_none(Word* address) {
  for (int i = 0; i < int(16 / sizeof(Word)); ++i) pass_word(address + i, Word(0));
}
#endif

/// A partial result as a word that is not 0, in its place in the workspace.
template <typename Number>
struct Passed;
template <typename Number_, typename Word_, Word_ kNone, Word_ kNaN>
struct PassedAs {
  using Number = Number_;
  using Word = Word_;

  CUTLASS_HOST_DEVICE static Word* at(Number* address) { return reinterpret_cast<Word*>(address); }
  CUTLASS_HOST_DEVICE static Word word(Number number) {
    Word const bits = reinterpret_cast<Word const&>(number);
    return (bits == kNone ? kNaN : bits) ^ kNone;
  }
  CUTLASS_HOST_DEVICE static Number number(Word word) {
    Word const bits = word ^ kNone;
    return reinterpret_cast<Number const&>(bits);
  }
};
// A NaN that nothing computes stands for none. One that comes from a tensor becomes another.
template <>
struct Passed<float> : PassedAs<float, uint32_t, 0xffd5a5a5u, 0x7fffffffu> {};
template <>
struct Passed<double> : PassedAs<double, uint64_t, 0xfffda5a5a5a5a5a5u, 0x7fffffffffffffffu> {};

/// Leaves a partial result.
template <typename Number>
CUTLASS_DEVICE void leave(Number* address, Number number) {
  pass_word(Passed<Number>::at(address), Passed<Number>::word(number));
}

/// Whether all lanes of a warp say so. Where lanes wait for different things they wait together: a compiler that cannot
/// see that they stay together keeps nothing in the registers that they share, in the mainloop neither.
CUTLASS_DEVICE bool all_agree(bool mine) {
#if PYCUTLASS_DEVICE_SIDE
  return __all_sync(0xffffffffu, mine);
#else
  int agree = mine;
  for (int lanes = 1; lanes < 32; lanes *= 2) agree &= exchanged(agree, lanes);
  return agree;
#endif
}

/// The number of a thread's warp, which all of its lanes have: a compiler that sees that keeps what a warp shares in
/// registers of its own, in the mainloop too.
CUTLASS_DEVICE int warp_of(int thread) {
#if PYCUTLASS_DEVICE_SIDE
  return __shfl_sync(0xffffffffu, thread / 32, 0);
#else
  return thread / 32;
#endif
}

/// Returns a bit for each lane of a warp that says so.
CUTLASS_DEVICE unsigned ballot(bool mine) {
#if PYCUTLASS_DEVICE_SIDE
  return __ballot_sync(0xffffffffu, mine);
#else
  unsigned result = unsigned(mine) << threadIdx.x % 32;
  for (int lanes = 1; lanes < 32; lanes *= 2) result |= exchanged(result, lanes);
  return result;
#endif
}

/// Waits for a partial result, and leaves none in its place. To be called by whole warps: `address` is null for lanes
/// that take none.
template <typename Number>
CUTLASS_DEVICE Number take(Number* address) {
  using As = Passed<Number>;
  typename As::Word word = 1;
  do {
    if (address) word = passed_word(As::at(address));
  } while (!all_agree(word != 0));
  if (address) pass_word(As::at(address), typename As::Word(0));
  return As::number(word);
}

/// Joins each of `kCount` results with those of lanes that are `kFrom`, 2 `kFrom`, ... below `kTo` apart. As long as
/// they are even in number, a lane keeps one half of them and gives the other away, so that few are exchanged.
template <typename Kind, int kFrom, int kTo, int kCount, typename Number>
CUTLASS_DEVICE void join_lines(Number* values, int lane) {
  if constexpr (kFrom < kTo) {
    constexpr bool kHalves = kCount % 2 == 0;
    constexpr int kKept = kHalves ? kCount / 2 : kCount;
    bool const is_upper = lane & kFrom;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kKept; ++i) {
      Number const upper = values[kHalves ? kKept + i : i];
      Number const given = is_upper ? values[i] : upper, kept = is_upper ? upper : values[i];
      values[i] = Kind::join(kept, exchanged(given, kFrom));
    }
    join_lines<Kind, 2 * kFrom, kTo, kKept>(values, lane);
  }
}
/// Which results a lane has then: `count` of them, from number `first` on, unless another lane has them as well.
struct JoinedLines {
  int first, count;
  bool is_other;
};
template <int kFrom, int kTo, int kCount>
CUTLASS_DEVICE JoinedLines joined_lines(int lane) {
  JoinedLines result{0, kCount, false};
  CUTLASS_PRAGMA_UNROLL
  for (int lanes = kFrom; lanes < kTo; lanes *= 2) {
    if (result.count % 2 == 0) {
      result.count /= 2;
      if (lane & lanes) result.first += result.count;
    } else if (lane & lanes) {
      result.is_other = true;
    }
  }
  return result;
}

/// What a warp joins: `count` numbers that lie side by side, 32 at most, of each of `lines` that lie `step` apart. They
/// are aligned to 16 bytes, and count is a multiple of these.
template <typename Number>
struct PartialLines {
  Number* first;
  int64_t step;
  int lines, count;
};

/// A result that a lane has, of the number-th of 32.
template <typename Number>
struct JoinedNumber {
  int number;
  Number value;
};

/// Waits for partial results, joins those of all lines in their order, and leaves none in their places. To be called by
/// whole warps. Each lane takes 16 bytes of some lines, as many at once as 32 registers hold, so that a line of tiles
/// takes the memory's latency once. A number that is not there yet is NaN, and so is what it is joined with: words are
/// looked at only if a result is. There must be few instructions: the tiles behind wait for them, and they are executed
/// so seldom that they come from memory.
template <typename Kind, typename Number>
CUTLASS_DEVICE JoinedNumber<Number> joined_partials(PartialLines<Number> const& all, int lane) {
  using As = Passed<Number>;
  using Joined = typename Kind::Joined;
  constexpr int kVector = 16 / sizeof(Number), kLanes = 32 / kVector;  // that have a line
  constexpr int kLoads = 8, kLinesAtOnce = 32 / kLanes;
  int const first = lane % kLanes * kVector;
  Number* from = all.first + lane / kLanes * all.step + first;
  Number results[kVector];
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < kVector; ++v) results[v] = Kind::template begin<Number>();
  CUTLASS_PRAGMA_NO_UNROLL
  for (int line = 0; line < all.lines; line += kLoads * kLinesAtOnce, from += kLoads * kLinesAtOnce * all.step) {
    int const lines = first < all.count ? all.lines - line - lane / kLanes : 0;  // of this lane, in kLinesAtOnce
    Number before[kVector];
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < kVector; ++v) before[v] = results[v];
    bool are_there;
    do {
      typename As::Word words[kLoads][kVector];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        CUTLASS_PRAGMA_UNROLL
        for (int v = 0; v < kVector; ++v) words[i][v] = As::word(Joined::template begin<Number>());
        if (i * kLinesAtOnce < lines) passed_words(As::at(from + i * kLinesAtOnce * all.step), words[i]);
      }
      are_there = true;
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < kVector; ++v) {
        Number numbers[kLoads];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kLoads; ++i) numbers[i] = As::number(words[i][v]);
        results[v] = taken<kLoads>(Joined(), before[v], static_cast<Number const*>(numbers));
        are_there = are_there && results[v] == results[v];
      }
      if (!are_there) {
        are_there = true;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kLoads * kVector; ++i) are_there = are_there && words[i / kVector][i % kVector] != 0;
      }
    } while (!all_agree(are_there));
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      if (i * kLinesAtOnce < lines) pass_none(As::at(from + i * kLinesAtOnce * all.step));
    }
  }
  join_lines<Joined, kLanes, 32, kVector>(results, lane);
  return {first + joined_lines<kLanes, 32, kVector>(lane).first, results[0]};
}

/// Joins the results of lanes that are `kFrom`, 2 `kFrom`, ... below `kTo` apart.
template <typename Kind, int kFrom, int kTo, typename Number>
CUTLASS_DEVICE Number joined(Number value) {
  CUTLASS_PRAGMA_UNROLL
  for (int lanes = kFrom; lanes < kTo; lanes *= 2) value = Kind::join(value, exchanged(value, lanes));
  return value;
}

}  // namespace function

}  // namespace pycutlass
