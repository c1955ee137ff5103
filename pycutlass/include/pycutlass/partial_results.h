// Partial results that threadblocks pass to each other through the workspace, word by word and without fences, and what
// the lanes of a warp join. Why: function_reduction.h.
#pragma once

#include "pycutlass/reduction_kinds.h"

namespace pycutlass {

/// The partial results of all tiles, in the workspace: for each reduction a line for each tile across its own. And
/// counters of the tiles that are done: of each line across, of each one down, and of all.
template <typename Number>
struct Partials {
  int tiles_m, tiles_n, tile_m, tile_n;
  int64_t batches;
  unsigned* first_counter;
  Number* first_number;

  CUTLASS_HOST_DEVICE int64_t counters() const { return batches * counters_of_batch(); }
  CUTLASS_HOST_DEVICE unsigned* counter(int axis, int64_t batch, int tile_m, int tile_n) const {
    int64_t const places[3] = {tile_m, int64_t(tiles_m) + tile_n, counters_of_batch() - 1};
    return first_counter + batch * counters_of_batch() + places[axis];
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
#else
template <typename Number>
Number exchanged(Number value, int lanes);
unsigned count_up(unsigned* counter, unsigned last);
template <typename Word>
void pass_word(Word* address, Word word);
template <typename Word>
Word passed_word(Word const* address);
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

/// Waits for partial results, joins them in their order, and leaves none in their places, which `address` tells: null
/// for those that a lane does not take. To be called by whole warps. So many are loaded and joined at once that a line
/// of tiles takes the memory's latency once: who is last with one tile is late with the next, and last again.
template <typename Kind, typename Number, typename Address>
CUTLASS_DEVICE Number joined_partials(int count, Address const& address) {
  using As = Passed<Number>;
  using Joined = typename Kind::Joined;
  constexpr int kAtOnce = 128 / sizeof(Number);
  typename As::Word words[kAtOnce];
  Number result = Kind::template begin<Number>(), numbers[kAtOnce];
  for (int first = 0; first < count; first += kAtOnce) {
    bool complete;
    do {
      complete = true;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        words[i] = 1;
        Number* const from = first + i < count ? address(first + i) : nullptr;
        if (from) words[i] = passed_word(As::at(from));
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) complete = complete && words[i] != 0;
    } while (!all_agree(complete));
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      Number* const from = first + i < count ? address(first + i) : nullptr;
      if (from) pass_word(As::at(from), typename As::Word(0));
      numbers[i] = from ? As::number(words[i]) : Joined::template begin<Number>();
    }
    result = taken<kAtOnce>(Joined(), result, static_cast<Number const*>(numbers));
  }
  return result;
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

/// Joins the results of lanes that are `kFrom`, 2 `kFrom`, ... below `kTo` apart.
template <typename Kind, int kFrom, int kTo, typename Number>
CUTLASS_DEVICE Number joined(Number value) {
  CUTLASS_PRAGMA_UNROLL
  for (int lanes = kFrom; lanes < kTo; lanes *= 2) value = Kind::join(value, exchanged(value, lanes));
  return value;
}

}  // namespace function

}  // namespace pycutlass
