// Runs a kernel with an epilogue function on the host, for problems named on the command line. What is computed for one
// element is taken from the function's own C++: which element that is, what is read for it and where results go, is
// not.
#pragma once

#include "asked.h"
#include "pycutlass/top_k.h"

// What the threads of reductions do together (pycutlass/partial_results.h).
namespace pycutlass::function {
template <typename Number>
Number exchanged(Number value, int lanes) {
  std::memcpy(emulation::slot(emulation::lane()), &value, sizeof(value));
  emulation::wait_for_warp();
  Number const result = emulation::read<Number>(emulation::lane() ^ lanes, 0);
  emulation::wait_for_warp();
  return result;
}
unsigned count_up(unsigned* counter, unsigned last) {
  return std::exchange(*counter, *counter < last ? *counter + 1 : 0);
}
template <typename Word>
void pass_word(Word* address, Word word) {
  if ((*address != 0) == (word != 0))
    emulation::fail("a partial result is left where there is one, or taken where there is none");
  *address = word;
}
template <typename Word>
Word passed_word(Word const* address) {
  // Threadblocks run one after the other: what is not there now will never be.
  if (*address == 0) emulation::fail("a partial result is missing");
  return *address;
}
}  // namespace pycutlass::function

namespace emulation {

using Number = Function::Number;
/// Of the accumulator, for each element of D.
constexpr int kColumnsOfElement = Function::kIsGated ? 2 : 1;
constexpr double kPoison = 100, kUntouched = 99;

/// What is computed: how many matrices of which extents, and whether tables list them.
struct Sizes {
  int m, n;
  int count = 1;
  bool listed = false;
};

template <auto kMember>
void point(Function::Arguments& arguments, pycutlass_operand const& operand) {
  auto& port = arguments.*kMember;
  port.data = static_cast<decltype(port.data)>(operand.data);
  port.stride = operand.stride[0];
  port.batch = operand.stride[1];
}

/// The memory of a port, with room between its lines.
template <typename Port>
struct Given;
template <template <auto, int> class Form, auto kMember, int kAlignment>
struct Given<Form<kMember, kAlignment>> {
  using Member = std::remove_cv_t<std::remove_reference_t<decltype(Function::Arguments{}.*kMember)>>;
  using Element = typename pycutlass::ElementOf<Member>::Type;
  static constexpr bool kIsRow = std::is_same_v<Form<kMember, kAlignment>, pycutlass::Row<kMember, kAlignment>>;
  static constexpr bool kIsColumn = std::is_same_v<Form<kMember, kAlignment>, pycutlass::Column<kMember, kAlignment>>;

  static constexpr bool kIsNumber = std::is_same_v<Form<kMember, kAlignment>, pycutlass::PerBatch<kMember, kAlignment>>;
  static constexpr bool kHasRows = !kIsRow && !kIsNumber, kHasColumns = !kIsColumn && !kIsNumber;

  static constexpr bool kIsByColumns =
      std::is_same_v<Form<kMember, kAlignment>, pycutlass::ColumnMajorMatrix<kMember, kAlignment>>;

  Matrix<Element, !kIsByColumns> memory;

  Given(Sizes const& sizes, double filling)
      : memory(kHasRows ? sizes.m : 1, kHasColumns ? sizes.n : 1, kIsColumn ? 0 : 3 * kAlignment, filling, sizes.count,
               sizes.listed) {}
  void give(Function::Arguments& arguments) { point<kMember>(arguments, memory.operand()); }
  /// Gives another matrix in its place, with the same elements.
  void give(Function::Arguments& arguments, pycutlass_operand const& other) { point<kMember>(arguments, other); }
  static constexpr bool kIsMatrix = std::is_same_v<Form<kMember, kAlignment>, pycutlass::Matrix<kMember, kAlignment>>;
  Element& at(int row, int column) { return memory(kHasRows ? row : 0, kHasColumns ? column : 0); }
};

template <typename Ports>
struct AllGiven;
template <typename... Ports>
struct AllGiven<pycutlass::List<Ports...>> {
  std::tuple<Given<Ports>...> each;

  AllGiven(Sizes const& sizes, double filling) : each(Given<Ports>(sizes, filling)...) {}
  template <typename Visit>
  void visit(Visit visit) {
    std::apply([&](auto&... given) { (visit(given), ...); }, each);
  }
};

/// The results of a reduction, and what they must be.
template <typename Reduction>
struct Reduced;
template <typename Kind, template <auto, int> class Form, auto kMember, int kAlignment>
struct Reduced<pycutlass::Reduction<Kind, Form<kMember, kAlignment>>> {
  using Member = std::remove_cv_t<std::remove_reference_t<decltype(Function::Arguments{}.*kMember)>>;
  using Element = typename pycutlass::ElementOf<Member>::Type;
  using Given = Form<kMember, kAlignment>;
  static constexpr bool kOfRowTiles = std::is_same_v<Given, pycutlass::RowTiles<kMember, kAlignment>>;
  static constexpr bool kOfColumnTiles = std::is_same_v<Given, pycutlass::ColumnTiles<kMember, kAlignment>>;
  static constexpr bool kOfRows = kOfRowTiles || std::is_same_v<Given, pycutlass::Column<kMember, kAlignment>>;
  static constexpr bool kOfColumns = kOfColumnTiles || std::is_same_v<Given, pycutlass::Row<kMember, kAlignment>>;

  static constexpr int kTileColumns = EMULATED_TILE_N / kColumnsOfElement;  // of D

  int m, n;
  Matrix<Element, true> memory;
  std::vector<double> wanted;

  /// The result that an element belongs to, and how many there are.
  int place(int row, int column) const {
    if (kOfRowTiles) return column / kTileColumns * m + row;
    if (kOfColumnTiles) return row / EMULATED_TILE_M * n + column;
    return kOfRows ? row : kOfColumns ? column : 0;
  }
  static int count(int m, int n) {
    if (kOfRowTiles) return m * ((n + kTileColumns - 1) / kTileColumns);
    if (kOfColumnTiles) return n * ((m + EMULATED_TILE_M - 1) / EMULATED_TILE_M);
    return kOfRows ? m : kOfColumns ? n : 1;
  }

  explicit Reduced(Sizes const& sizes)
      : m(sizes.m),
        n(sizes.n),
        memory(1, count(m, n), 8, kUntouched, sizes.count, sizes.listed),
        wanted(count(m, n) + 1) {}
  void give(Function::Arguments& arguments) { point<kMember>(arguments, memory.operand()); }
  void begin() {
    for (double& each : wanted) each = Kind::template begin<double>();
  }
  void take(int row, int column, double value) {
    double& result = wanted[place(row, column)];
    result = Kind::take(result, value);
  }
  /// What no element is reduced to stays as it was.
  long wrong(int m, int n) {
    if (m == 0 || n == 0) return !memory.holds(kUntouched);
    double const error = sizeof(Element) == 2 ? 1e-3 : 1e-5;
    long found = !memory.has_slack(kUntouched);
    for (int i = 0; i < count(m, n); ++i) {
      double const made = number(memory(0, i)), most = std::abs(wanted[i]) + 1;
      if (!(std::abs(made - wanted[i]) <= error * most) && ++found == 1) {
        std::printf("reduction [%d] is %g, not %g\n", i, made, wanted[i]);
      }
    }
    return found;
  }
};

/// What is selected from rows, and what that must be: by a sort of each row as NumPy does it.
template <int kCount, typename Values, typename Indices>
struct Reduced<pycutlass::TopK<kCount, Values, Indices>> {
  AllGiven<Values> values;
  AllGiven<Indices> indices;
  std::vector<std::vector<double>> rows;
  /// What `FunctionCheck` asks to go over to another matrix.
  struct Memory {
    Reduced* owner;
    void choose(int number) {
      auto const go = [&](auto& given) { given.memory.choose(number); };
      owner->values.visit(go), owner->indices.visit(go);
    }
  } memory{this};

  explicit Reduced(Sizes const& sizes)
      : values({sizes.m, kCount, sizes.count, sizes.listed}, kUntouched),
        indices({sizes.m, kCount, sizes.count, sizes.listed}, kUntouched),
        rows(sizes.m) {}
  Reduced(Reduced&& other)
      : values(std::move(other.values)), indices(std::move(other.indices)), rows(std::move(other.rows)) {}

  void give(Function::Arguments& arguments) {
    auto const give = [&](auto& given) { given.give(arguments); };
    values.visit(give), indices.visit(give);
  }
  void begin() {
    for (auto& row : rows) row.clear();
  }
  void take(int row, int, double value) { rows[row].push_back(value); }
  long wrong(int m, int n) {
    long found = 0;
    auto const look = [&](auto& given) { found += !given.memory.has_slack(kUntouched); };
    values.visit(look), indices.visit(look);
    for (int row = 0; row < m; ++row) {
      auto const& line = rows[row];
      std::vector<int> order(n > 0 ? n : 0);
      for (int i = 0; i < n; ++i) order[i] = i;
      std::stable_sort(order.begin(), order.end(), [&](int left, int right) {
        double const x = line[left], y = line[right];
        return x > y || (x != x && y == y);
      });
      for (int i = 0; i < kCount; ++i) {
        bool right = true;
        values.visit([&](auto& given) {
          using Element = typename std::remove_reference_t<decltype(given)>::Element;
          double const made = number(given.at(row, i));
          double const wanted =
              n > 0 ? number(pycutlass::function::Stored<Element>::of(Number(line[order[i]]))) : kUntouched;
          right &= made == wanted || (made != made && wanted != wanted);
        });
        indices.visit([&](auto& given) { right &= number(given.at(row, i)) == (n > 0 ? order[i] : kUntouched); });
        if (!right && ++found == 1) std::printf("of row %d the place %d is wrong\n", row, i);
      }
    }
    return found;
  }
};

template <typename Reductions>
struct AllReduced;
template <typename... Reductions>
struct AllReduced<pycutlass::List<Reductions...>> {
  std::tuple<Reduced<Reductions>...> each;

  explicit AllReduced(Sizes const& sizes) : each(Reduced<Reductions>(sizes)...) {}
  template <typename Visit>
  void visit(Visit visit) {
    std::apply([&](auto&... reduced) { (visit(reduced), ...); }, each);
  }
};

/// Gives every scalar of a function a number of its own, so that nothing that is multiplied by one is lost.
inline void give_scalars(Function::Arguments& arguments) {
  pycutlass_epilogue_field fields[256];
  pycutlass::EpilogueFields<Function::Arguments> told(fields, 256);
  Function::Arguments::describe(told);
  double value = 1.5;
  for (uint32_t i = 0; i < told.count(); ++i) {
    if (fields[i].kind != PYCUTLASS_VALUE) continue;
    char* const place = reinterpret_cast<char*>(&arguments) + fields[i].offset;
    auto const put = [&](auto element) { std::memcpy(place, &element, sizeof(element)); };
    switch (fields[i].element) {
      case PYCUTLASS_F64:
        put(value);
        break;
      case PYCUTLASS_F32:
        put(float(value));
        break;
      case PYCUTLASS_F16:
        put(cutlass::half_t(float(value)));
        break;
      case PYCUTLASS_BF16:
        put(cutlass::bfloat16_t(float(value)));
        break;
      default:
        fail("a scalar of another type");
    }
    value += 1;
  }
}

/// All tensors of a function for a D of m x n, or several, and what must come out. Where D is column-major, all this is
/// of the transposed problem.
struct FunctionCheck {
  Sizes sizes, of_D;
  AllGiven<Function::Inputs> inputs;
  AllGiven<Function::HalfInputs> half_inputs;
  AllGiven<Function::Outputs> outputs;
  AllGiven<Function::WholeOutputs> whole_outputs;
  AllReduced<Function::Reductions> reductions;
  Function::Arguments arguments{};
  Number scalars[Function::kScalars + 1];
  long found = 0;

  FunctionCheck(Sizes const& sizes_, std::mt19937& random)
      : sizes(sizes_),
        of_D{sizes.m, sizes.n / kColumnsOfElement, sizes.count, sizes.listed},
        inputs(sizes, kPoison),
        half_inputs(of_D, kPoison),
        outputs(of_D, kUntouched),
        whole_outputs(sizes, kUntouched),
        reductions(of_D) {
    auto const fill = [&](auto& given) { given.memory.fill(random), given.give(arguments); };
    inputs.visit(fill), half_inputs.visit(fill);
    auto const give = [&](auto& given) { given.give(arguments); };
    outputs.visit(give), whole_outputs.visit(give);
    reductions.visit([&](auto& reduced) { reduced.give(arguments); });
    give_scalars(arguments);
    Function::read_scalars(arguments, scalars);
  }
  /// Has the first matrix that is read and is of the type of D be D itself; returns whether there is one.
  template <bool kTransposed, typename Target>
  bool put_in_place(Target& D) {
    bool done = false;
    auto const put = [&](auto& given) {
      using Port = std::remove_reference_t<decltype(given)>;
      if constexpr (Port::kIsMatrix && std::is_same_v<typename Port::Element, typename Target::Element>) {
        if (std::exchange(done, true)) return;
        for (int each = 0; each < sizes.count; ++each) {
          given.memory.choose(each), D.choose(each);
          for (int row = 0; row < of_D.m; ++row) {
            for (int column = 0; column < of_D.n; ++column) {
              D(kTransposed ? column : row, kTransposed ? row : column) = given.at(row, column);
            }
          }
        }
        given.memory.choose(0), D.choose(0);
        given.give(arguments, D.operand());
      }
    };
    if (kColumnsOfElement == 1) inputs.visit(put);
    half_inputs.visit(put);
    return done;
  }
  /// Goes over to one of several matrices.
  void choose(int number) {
    auto const go = [&](auto& given) { given.memory.choose(number); };
    inputs.visit(go), half_inputs.visit(go), outputs.visit(go), whole_outputs.visit(go);
    reductions.visit([&](auto& reduced) { reduced.memory.choose(number), reduced.begin(); });
  }
  /// Returns 1 where an element of D or of another output is wrong, having told of the first.
  template <typename Element>
  long wrong(int row, int column, double sum, double source, Element const& made) {
    return wrong_of(row, column, [&](int) { return sum; }, source, made);
  }
  template <typename Sum, typename Element>
  long wrong_of(int row, int column, Sum const& sum, double source, Element const& made) {
    Number in[kColumnsOfElement][2 + Function::Inputs::kSize];
    Number out[1 + Function::Outputs::kSize + Function::Reductions::kSize];
    int place = 1;
    for (int i = 0; i < kColumnsOfElement; ++i) {
      int const each = kColumnsOfElement * column + i;
      place = 1;
      in[i][0] = Number(sum(each));
      if (Function::kReadsSource) in[i][place++] = Number(source);
      inputs.visit([&](auto& given) { in[i][place++] = Number(number(given.at(row, each))); });
    }
    Number half[1 + Function::HalfInputs::kSize], whole[1 + Function::WholeOutputs::kSize][2];
    place = 0;
    half_inputs.visit([&](auto& given) { half[place++] = Number(number(given.at(row, column))); });
    compute(in, half, out, whole);
    bool right = number(made) == number(pycutlass::function::Stored<Element>::of(out[0]));
    place = 1;
    outputs.visit([&](auto& given) {
      using Other = typename std::remove_reference_t<decltype(given)>::Element;
      right &= number(given.at(row, column)) == number(pycutlass::function::Stored<Other>::of(out[place++]));
    });
    reductions.visit([&](auto& reduced) { reduced.take(row, column, out[place++]); });
    place = 0;
    whole_outputs.visit([&](auto& given) {
      using Other = typename std::remove_reference_t<decltype(given)>::Element;
      for (int i = 0; i < 2; ++i) {
        right &=
            number(given.at(row, 2 * column + i)) == number(pycutlass::function::Stored<Other>::of(whole[place][i]));
      }
      ++place;
    });
    if (!right && ++found == 1) {
      std::printf("D[%d, %d] is %g, not %g\n", row, column, number(made), double(out[0]));
    }
    return !right;
  }
  /// Returns how many elements of a row are wrong, where `sum` is called for the accumulator with a column of `n`.
  template <bool kTransposed = false, typename Sum, typename Source, typename Target>
  long wrong_in_row(int row, int n, Sum const& sum, Source& C, Target& D) {
    long result = 0;
    for (int column = 0; column < n / kColumnsOfElement; ++column) {
      double const source = number(C(row, column));
      if (kTransposed) {
        result += wrong(column, row, sum(column), source, D(row, column));
      } else {
        result += wrong_of(row, column, sum, source, D(row, column));
      }
    }
    return result;
  }
  template <size_t kCount>
  void compute(Number const (&in)[1][kCount], Number const*, Number* out, Number (*)[2]) {
    Function::compute(scalars, in[0], out);
  }
  template <size_t kCount>
  void compute(Number const (&in)[2][kCount], Number const* half, Number* out, Number (*whole)[2]) {
    Function::compute(scalars, in[0], in[1], half, out, whole);
  }
  /// Returns how many elements that are read of a matrix were not asked for before.
  long not_asked() {
    long result = 0;
    auto const look = [&](auto& given) { result += emulation::not_asked(given.memory); };
    inputs.visit(look), half_inputs.visit(look);
    if (result) std::printf("%ld elements were not asked for before the mainloop\n", result);
    return result;
  }
  /// Returns how many reductions of a matrix are wrong, and outputs that were written beside their elements.
  long wrong_at_last() {
    long wrong = 0;
    auto const look = [&](auto& given) { wrong += !given.memory.has_slack(kUntouched); };
    outputs.visit(look), whole_outputs.visit(look);
    reductions.visit([&](auto& reduced) { wrong += reduced.wrong(of_D.m, of_D.n); });
    return wrong;
  }
};

/// The tables of one port: where it is in all problems, or the numbers of all.
struct Tables {
  std::vector<void const*> addresses;
  std::vector<int64_t> strides;
  std::vector<double> numbers;  // memory of elements that may be smaller
};

/// Points the ports of `arguments` at tables, which it makes of those of all problems: pointers to what has a
/// FunctionCheck `check`.
template <typename Ports>
struct Listed;
template <typename Kind, typename Port>
struct Listed<pycutlass::Reduction<Kind, Port>> : Listed<pycutlass::List<Port>> {};
template <int kCount, typename Values, typename Indices>
struct Listed<pycutlass::TopK<kCount, Values, Indices>> {
  template <typename Problems>
  static void point(Problems const& problems, Function::Arguments& arguments, std::vector<Tables>& made) {
    Listed<Values>::point(problems, arguments, made);
    Listed<Indices>::point(problems, arguments, made);
  }
};
/// Of reductions, and of what is selected.
template <typename Reductions>
struct ListedReductions;
template <typename... Reductions>
struct ListedReductions<pycutlass::List<Reductions...>> {
  template <typename Problems>
  static void point(Problems const& problems, Function::Arguments& arguments, std::vector<Tables>& made) {
    (Listed<Reductions>::point(problems, arguments, made), ...);
  }
};
template <>
struct Listed<pycutlass::List<>> {
  template <typename Problems>
  static void point(Problems const&, Function::Arguments&, std::vector<Tables>&) {}
};
template <template <auto, int> class... Forms, auto... kMembers, int... kAlignments>
struct Listed<pycutlass::List<Forms<kMembers, kAlignments>...>> {
  template <typename Problems>
  static void point(Problems const& problems, Function::Arguments& arguments, std::vector<Tables>& made) {
    (point_one<Forms<kMembers, kAlignments>, kMembers>(problems, arguments, made), ...);
  }
  template <typename Form, auto kMember, typename Problems>
  static void point_one(Problems const& problems, Function::Arguments& arguments, std::vector<Tables>& made) {
    made.emplace_back();
    if (std::is_same_v<Form, pycutlass::PerBatch<kMember, 1>> && made.size() > 1) {
      return line_up<kMember>(problems, arguments.*kMember, made.back().numbers);
    }
    for (auto const& each : problems) {
      made.back().addresses.push_back((each->check.arguments.*kMember).data);
      made.back().strides.push_back((each->check.arguments.*kMember).stride);
    }
    auto& port = arguments.*kMember;
    port.data = reinterpret_cast<decltype(port.data)>(made.back().addresses.data());
    port.stride = reinterpret_cast<int64_t>(made.back().strides.data());
    port.batch = 0;
  }
  /// Has the numbers of all problems lie two elements apart.
  template <auto kMember, typename Problems, typename Port>
  static void line_up(Problems const& problems, Port& port, std::vector<double>& numbers) {
    using Element = typename pycutlass::ElementOf<Port>::Type;
    numbers.resize(2 * problems.size() + 1, kPoison);
    auto* const first = reinterpret_cast<Element*>(numbers.data());
    for (size_t i = 0; i < problems.size(); ++i) first[2 * i] = *(problems[i]->check.arguments.*kMember).data;
    port = {first, 0, 2};
  }
};

/// The same of all ports.
template <typename Problems>
void point_at_tables(Problems const& problems, Function::Arguments& arguments, std::vector<Tables>& made) {
  Listed<Function::Inputs>::point(problems, arguments, made);
  Listed<Function::HalfInputs>::point(problems, arguments, made);
  Listed<Function::Outputs>::point(problems, arguments, made);
  Listed<Function::WholeOutputs>::point(problems, arguments, made);
  ListedReductions<Function::Reductions>::point(problems, arguments, made);
}

}  // namespace emulation
