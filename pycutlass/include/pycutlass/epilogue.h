// Epilogues as a call record has them: the arguments of one launch, what they are called, and what CUTLASS's functors
// and fusions make of them.
#pragma once

#include "pycutlass/activation.h"
#include "pycutlass/host.h"
#include "pycutlass/prelude.h"

#include <cutlass/cutlass.h>

namespace pycutlass {

/// A tensor of an epilogue: where it begins, and the elements between its rows and between the matrices of a batch.
///
/// Or there is a table with an entry for each matrix: `data` is the address of one of addresses then, and where each
/// matrix has a stride of its own `stride` is that of a table of strides.
template <typename Element>
struct Port {
  static constexpr int64_t kTables = -(int64_t(1) << 62), kAddresses = kTables + 1;

  Element* data;
  int64_t stride;
  int64_t batch;

  /// One of the matrices.
  CUTLASS_HOST_DEVICE Port of(int64_t matrix) const {
    if (batch > kAddresses) return {data + matrix * batch, stride, 0};
    return {reinterpret_cast<Element* const*>(data)[matrix],
            batch == kTables ? reinterpret_cast<int64_t const*>(stride)[matrix] : stride, 0};
  }
};

}  // namespace pycutlass

#if !PYCUTLASS_DEVICE_SIDE

#include <cstring>
#include <type_traits>
#include <utility>

namespace pycutlass {

/// An operand that lies where a tensor of an epilogue does; it reads alone.
template <typename Element>
pycutlass_operand operand_of(Port<Element> const& port, pycutlass_operand operand) {
  operand.data = const_cast<std::remove_const_t<Element>*>(port.data);
  operand.stride[0] = port.stride;
  operand.stride[1] = port.batch;
  return operand;
}

/// Tells of the fields of an epilogue's arguments, or of what they derive from. A member says itself where it is and
/// what it is made of.
template <typename Arguments>
class EpilogueFields {
 public:
  EpilogueFields(pycutlass_epilogue_field* fields, uint32_t room) : fields_(fields), room_(room) {}
  uint32_t count() const { return count_; }

  template <typename Member, typename Owner>
  void value(char const* name, Member Owner::* member) {
    add<Member>(name, member, PYCUTLASS_VALUE, element_code<Member>);
  }
  template <typename Member, typename Owner>
  void address(char const* name, Member* Owner::* member) {
    using Element = std::remove_const_t<Member>;
    add<Member*>(name, member, PYCUTLASS_ADDRESS, element_code<Element>, 0, !std::is_const_v<Member>);
  }
  template <typename Owner>
  void stride(char const* name, int64_t Owner::* member, uint8_t index) {
    add<int64_t>(name, member, PYCUTLASS_STRIDE, PYCUTLASS_S64, index);
  }
  template <typename Member, typename Owner>
  void port(char const* name, Port<Member> Owner::* member) {
    using Element = std::remove_const_t<Member>;
    size_t const offset = offset_of(member);
    add_at(name, offset + offsetof(Port<Member>, data), sizeof(Member*), PYCUTLASS_ADDRESS, element_code<Element>, 0,
           !std::is_const_v<Member>);
    add_at(name, offset + offsetof(Port<Member>, stride), sizeof(int64_t), PYCUTLASS_STRIDE, PYCUTLASS_S64, 0);
    add_at(name, offset + offsetof(Port<Member>, batch), sizeof(int64_t), PYCUTLASS_STRIDE, PYCUTLASS_S64, 1);
  }

 private:
  template <typename Member, typename Owner>
  static size_t offset_of(Member Owner::* member) {
    static Arguments const probe{};
    return reinterpret_cast<char const*>(&(probe.*member)) - reinterpret_cast<char const*>(&probe);
  }
  template <typename Member, typename Owner>
  void add(char const* name, Member Owner::* member, pycutlass_field_kind kind, uint8_t element, uint8_t index = 0,
           bool written = false) {
    add_at(name, offset_of(member), sizeof(Member), kind, element, index, written);
  }
  void add_at(char const* name, size_t offset, size_t bytes, pycutlass_field_kind kind, uint8_t element,
              uint8_t index = 0, bool written = false) {
    if (count_++ >= room_) return;
    pycutlass_epilogue_field field{};
    std::strncpy(field.name, name, sizeof(field.name) - 1);
    field.offset = static_cast<uint16_t>(offset);
    field.bytes = static_cast<decltype(field.bytes)>(bytes);
    field.kind = static_cast<uint8_t>(kind);
    field.element = element;
    field.index = index;
    field.written = written;
    fields_[count_ - 1] = field;
  }

  pycutlass_epilogue_field* fields_;
  uint32_t room_;
  uint32_t count_ = 0;
};

/// Arguments of a linear combination; `kHasSlope` says whether there is an activation that takes one.
template <typename Element, bool kHasSlope>
struct LinearCombinationArguments {
  Element alpha, beta;
  Element const *alpha_ptr, *beta_ptr;

  template <typename Fields>
  static void describe_slope(Fields&) {}
};
template <typename Element>
struct LinearCombinationArguments<Element, true> {
  Element alpha, beta, leaky_alpha;
  Element const *alpha_ptr, *beta_ptr;

  template <typename Fields>
  static void describe_slope(Fields& fields) {
    fields.value("leaky_alpha", &LinearCombinationArguments::leaky_alpha);
  }
};

/// What all linear combinations share.
template <typename Element_, bool kHasSlope>
struct LinearCombinationEpilogue {
  using Element = Element_;
  using Arguments = LinearCombinationArguments<Element, kHasSlope>;

  static Arguments const& arguments(pycutlass_call const& call) {
    return *static_cast<Arguments const*>(call.epilogue);
  }

  template <typename Fields>  // of arguments that may have more
  static void describe(Fields& fields) {
    fields.value("alpha", &Arguments::alpha);
    fields.address("alpha", &Arguments::alpha_ptr);
    fields.value("beta", &Arguments::beta);
    fields.address("beta", &Arguments::beta_ptr);
    Arguments::describe_slope(fields);
  }

 protected:
  template <typename Params>
  static void fill_scalars(Params& params, Arguments const& arguments) {
    params.alpha = arguments.alpha;
    params.beta = arguments.beta;
    params.alpha_ptr = arguments.alpha_ptr;
    params.beta_ptr = arguments.beta_ptr;
  }
};

template <typename Arguments, typename = void>
struct HasLeakyAlpha : std::false_type {};
template <typename Arguments>
struct HasLeakyAlpha<Arguments, std::void_t<decltype(std::declval<Arguments&>().leaky_alpha)>> : std::true_type {};

/// A thread-level functor: LinearCombination and its relatives of CUTLASS's 2.x API.
template <typename OutputOp>
struct ThreadEpilogue
    : LinearCombinationEpilogue<typename OutputOp::ElementCompute, HasLeakyAlpha<typename OutputOp::Params>::value> {
  using Params = typename OutputOp::Params;

  static Params params(pycutlass_call const& call) {
    auto const& arguments = ThreadEpilogue::arguments(call);
    Params params;
    ThreadEpilogue::fill_scalars(params, arguments);
    if constexpr (HasLeakyAlpha<Params>::value) params.leaky_alpha = arguments.leaky_alpha;
    return params;
  }
};

template <typename Arguments, typename = void>
struct ActivationHasLeakyAlpha : std::false_type {};
template <typename Arguments>
struct ActivationHasLeakyAlpha<Arguments, std::void_t<decltype(std::declval<Arguments&>().activation.leaky_alpha)>>
    : std::true_type {};

/// A fusion of the 3.x API; `FusionArguments` is what its callbacks take. Scalars in device memory may be there for
/// each matrix of a batch: the steps between them, in elements, are 0 where one stands for all.
template <typename Fusion, typename FusionArguments>
struct FusionEpilogue
    : LinearCombinationEpilogue<typename Fusion::ElementScalar, ActivationHasLeakyAlpha<FusionArguments>::value> {
  using OfAll =
      LinearCombinationEpilogue<typename Fusion::ElementScalar, ActivationHasLeakyAlpha<FusionArguments>::value>;
  struct Arguments : OfAll::Arguments {
    int64_t alpha_step, beta_step;
  };

  static Arguments const& arguments(pycutlass_call const& call) {
    return *static_cast<Arguments const*>(call.epilogue);
  }

  static void describe(EpilogueFields<Arguments>& fields) {
    OfAll::describe(fields);
    fields.stride("alpha", &Arguments::alpha_step, 0);
    fields.stride("beta", &Arguments::beta_step, 0);
  }

  /// Whether scalars come from device memory, which the epilogue reads before it waits for anything.
  static bool reads_ahead(pycutlass_call const& call) {
    auto const& arguments = FusionEpilogue::arguments(call);
    return arguments.alpha_ptr || arguments.beta_ptr;
  }

  static void fill(FusionArguments& fusion, pycutlass_call const& call) {
    auto const& arguments = FusionEpilogue::arguments(call);
    FusionEpilogue::fill_scalars(fusion, arguments);
    fusion.dAlpha = decltype(fusion.dAlpha){{}, {}, arguments.alpha_step};
    fusion.dBeta = decltype(fusion.dBeta){{}, {}, arguments.beta_step};
    if constexpr (ActivationHasLeakyAlpha<FusionArguments>::value) {
      fusion.activation.leaky_alpha = arguments.leaky_alpha;
    }
  }
};

}  // namespace pycutlass

#endif
