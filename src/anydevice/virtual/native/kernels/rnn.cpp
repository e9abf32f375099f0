// cuDNN's recurrent networks: whole layers in one call. Forward is the CPU's own RNN, bit for bit;
// backward runs it once more under autograd, so nothing but the dropout's seed has to be kept.
#include "rnn.h"
#include "attention.h"  // dropout_factors(), number_in()

#include <ATen/native/RNN.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

namespace anydevice::kernels {
namespace {

struct Rnn {
  int64_t mode, hidden_size, proj_size, layers, weights_per_layer;
  bool batch_first, train, bidirectional;
  double dropout;
  std::vector<int64_t> batch_sizes;  // of a packed sequence
  bool differentiable = false;       // linear asks, to choose between two ways to the same product

  int64_t directions() const { return bidirectional ? 2 : 1; }
  bool has_biases() const { return weights_per_layer >= 4; }
  bool drops() const { return train && dropout > 0 && layers > 1; }
};

// ---- one or more layers, on the host ----

using Sequence = std::tuple<Tensor, Tensor, Tensor>;  // output, hy, cy

Sequence run_layers(const Rnn& rnn, int64_t layers, const Tensor& input, const Tensor& hx,
                    const Tensor& cx, TensorList weights) {
  const auto bias = rnn.has_biases(), both = rnn.bidirectional, train = rnn.train;
  if (!rnn.batch_sizes.empty()) {
    const auto sizes = at::tensor(rnn.batch_sizes, at::kLong);
    const auto plain = [&](auto op) {
      const auto [output, hy] = op(input, sizes, hx, weights, bias, layers, 0.0, train, both);
      return Sequence{output, hy, Tensor()};
    };
    using Op = std::tuple<Tensor, Tensor> (*)(const Tensor&, const Tensor&, const Tensor&,
                                              TensorList, bool, int64_t, double, bool, bool);
    return rnn.mode == rnn_lstm
               ? at::lstm(input, sizes, {hx, cx}, weights, bias, layers, 0.0, train, both)
           : rnn.mode == rnn_gru  ? plain(static_cast<Op>(&at::gru))
           : rnn.mode == rnn_tanh ? plain(static_cast<Op>(&at::rnn_tanh))
                                  : plain(static_cast<Op>(&at::rnn_relu));
  }
  const auto first = rnn.batch_first;
  const auto plain = [&](auto op) {
    const auto [output, hy] = op(input, hx, weights, bias, layers, 0.0, train, both, first);
    return Sequence{output, hy, Tensor()};
  };
  using Op = std::tuple<Tensor, Tensor> (*)(const Tensor&, const Tensor&, TensorList, bool, int64_t,
                                            double, bool, bool, bool);
  return rnn.mode == rnn_lstm
             ? at::lstm(input, {hx, cx}, weights, bias, layers, 0.0, train, both, first)
         : rnn.mode == rnn_gru  ? plain(static_cast<Op>(&at::gru))
         : rnn.mode == rnn_tanh ? plain(static_cast<Op>(&at::rnn_tanh))
                                : plain(static_cast<Op>(&at::rnn_relu));
}

// With dropout the layers run one by one: each but the first reads what is left of the one before.
Sequence run(const Rnn& rnn, const Tensor& input, const Tensor& hx, const Tensor& cx,
             TensorList weights, const Tensor& seed) {
  if (!rnn.drops()) {
    return run_layers(rnn, rnn.layers, input, hx, cx, weights);
  }
  const auto states = rnn.directions();
  auto output = input;
  std::vector<Tensor> hy, cy;
  for (int64_t layer = 0; layer < rnn.layers; ++layer) {
    if (layer > 0) {
      output = output * dropout_factors(output, {rnn.dropout, number_in(seed), layer});
    }
    Tensor layer_hy, layer_cy;
    std::tie(output, layer_hy, layer_cy) = run_layers(
        rnn, 1, output, hx.narrow(0, layer * states, states),
        cx.defined() ? cx.narrow(0, layer * states, states) : cx,
        weights.slice(layer * states * rnn.weights_per_layer, states * rnn.weights_per_layer));
    hy.push_back(layer_hy);
    cy.push_back(layer_cy);
  }
  return {output, at::cat(hy), cx.defined() ? at::cat(cy) : Tensor()};
}

// Autograd as at the top level, although we are inside an op, and perhaps in inference mode.
struct WithAutograd {
  c10::InferenceMode mode{false};
  c10::impl::ForceDispatchKeyGuard keys{c10::default_included_set, c10::default_excluded_set};
  at::AutoGradMode grad{true};
};

// The same bytes as a tensor that is made now: an inference tensor in inference mode, and only
// there.
Tensor made_here(const Tensor& tensor) {
  return tensor.defined() && tensor.is_inference() != c10::InferenceMode::is_enabled()
             ? at::empty({0}, tensor.options())
                   .set_(tensor.storage(), tensor.storage_offset(), tensor.sizes(),
                         tensor.strides())
             : tensor;
}

Tensor leaf(const Tensor& tensor) {
  return tensor.defined() ? made_here(tensor).detach().requires_grad_() : tensor;
}

Sequence forward(const Tensor& input, const std::vector<Tensor>& weights, const Tensor& hx,
                 const MaybeTensor& cx, const Rnn& rnn, const Tensor& seed) {
  std::optional<WithAutograd> enabled;
  auto used = weights;
  if (rnn.differentiable && !input.is_meta()) {
    enabled.emplace();
    std::transform(weights.begin(), weights.end(), used.begin(), &leaf);
  }
  auto [output, hy, cy] = run(rnn, input, hx, or_undefined(cx), used, seed);
  return {output.detach(), hy.detach(), cy.defined() ? cy.detach() : at::empty({0}, hx.options())};
}

// ---- backward: forward again, with gradients ----

using Gradients = std::tuple<Tensor, Tensor, Tensor, std::vector<Tensor>>;

Gradients shapes_of_gradients(const Tensor& input, const Tensor& hx, const Tensor& cx,
                              const std::vector<Tensor>& weights) {
  std::vector<Tensor> grads;
  for (const auto& weight : weights) {
    grads.push_back(at::empty_like(weight));
  }
  return {at::empty_like(input), at::empty_like(hx), cx.defined() ? at::empty_like(cx) : Tensor(),
          grads};
}

Gradients backward(const Tensor& input, const std::vector<Tensor>& weights, const Tensor& hx,
                   const MaybeTensor& maybe_cx, const MaybeTensor& grad_output,
                   const MaybeTensor& grad_hy, const MaybeTensor& grad_cy, const Rnn& rnn,
                   const Tensor& seed) {
  const auto cx = or_undefined(maybe_cx);
  if (input.is_meta()) {
    return shapes_of_gradients(input, hx, cx, weights);
  }
  const WithAutograd enabled;
  std::vector<Tensor> leaves = {leaf(input), leaf(hx)};
  for (const auto& weight : weights) {
    leaves.push_back(leaf(weight));
  }
  if (cx.defined()) {
    leaves.push_back(leaf(cx));
  }
  const auto [output, hy, cy] = run(rnn, leaves[0], leaves[1], cx.defined() ? leaves.back() : cx,
                                    TensorList(leaves).slice(2, weights.size()), seed);
  std::vector<Tensor> results, grads;
  const auto add = [&](const Tensor& result, const MaybeTensor& grad) {
    if (given(grad)) {
      results.push_back(result);
      grads.push_back(*grad);
    }
  };
  add(output, grad_output);
  add(hy, grad_hy);
  add(cy, cx.defined() ? grad_cy : MaybeTensor());
  auto found = torch::autograd::grad(results, leaves, grads, /*retain_graph=*/std::nullopt,
                                     /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t place = 0; place < found.size(); ++place) {
    if (!found[place].defined()) {
      found[place] = at::zeros_like(leaves[place]);
    }
  }
  return {found[0],
          found[1],
          cx.defined() ? found.back() : Tensor(),
          {found.begin() + 2, found.begin() + 2 + static_cast<int64_t>(weights.size())}};
}

Gradients backward_here(const Tensor& input, const std::vector<Tensor>& weights, const Tensor& hx,
                        const MaybeTensor& cx, const MaybeTensor& grad_output,
                        const MaybeTensor& grad_hy, const MaybeTensor& grad_cy, const Rnn& rnn,
                        const Tensor& seed) {
  auto [grad_input, grad_hx, grad_cx, grad_weights] =
      backward(input, weights, hx, cx, grad_output, grad_hy, grad_cy, rnn, seed);
  std::transform(grad_weights.begin(), grad_weights.end(), grad_weights.begin(), &made_here);
  return {made_here(grad_input), made_here(grad_hx), made_here(grad_cx), std::move(grad_weights)};
}

// ---- what cuDNN keeps between forward and backward ----

// The state that dropout draws its seeds from: where it began and how often it was used.
Tensor init_dropout_state(double, bool, int64_t seed, std::optional<ScalarType> type,
                          std::optional<at::Layout>, std::optional<Device> device,
                          std::optional<bool>) {
  auto state = at::empty({2 * sizeof(int64_t)},
                         at::dtype(type.value_or(at::kByte)).device(device.value_or(at::kCUDA)));
  if (!machine.hollow) {
    auto* numbers = static_cast<int64_t*>(state.mutable_data_ptr());
    numbers[0] = seed;
    numbers[1] = 0;
  }
  return state;
}

int64_t next_seed(const MaybeTensor& state) {
  if (!given(state) || machine.hollow) {
    return 0;
  }
  auto* numbers = static_cast<int64_t*>(state->mutable_data_ptr());
  return numbers[0] + ++numbers[1];
}

// cuDNN's reserve holds every gate of every step. Ours is as large, but holds one seed.
Tensor make_reserve(const Rnn& rnn, const Tensor& input, int64_t seed) {
  const int64_t gates = rnn.mode == rnn_lstm ? 4 : rnn.mode == rnn_gru ? 3 : 1;
  const int64_t steps = input.numel() / std::max<int64_t>(input.size(-1), 1);
  const int64_t numbers = rnn.layers * rnn.directions() * steps * rnn.hidden_size * (gates + 1);
  const int64_t bytes = std::max<int64_t>(numbers * input.element_size(), sizeof(int64_t));
  auto reserve = at::empty({rnn.train ? bytes : 0}, input.options().dtype(at::kByte));
  if (rnn.train && !machine.hollow) {
    *static_cast<int64_t*>(reserve.mutable_data_ptr()) = seed;
  }
  return reserve;
}

int64_t total_of(TensorList weights) {
  int64_t total = 0;
  for (const auto& weight : weights) {
    total += weight.numel();
  }
  return total;
}

// The parameters become views of one buffer: first all matrices, then all biases.
Tensor flatten_weight(TensorList weights, int64_t, SymInt, int64_t, SymInt, SymInt, int64_t, bool,
                      bool) {
  TORCH_CHECK(!weights.empty(), "empty weight list");
  const auto buffer = at::zeros({total_of(weights)}, weights[0].options());
  int64_t offset = 0;
  for (const int64_t dim : {2, 1}) {
    for (auto weight : weights) {
      if (weight.dim() == dim) {
        const auto place = buffer.narrow(0, offset, weight.numel()).view_as(weight);
        place.copy_(weight);
        weight.set_(place);
        offset += weight.numel();
      }
    }
  }
  return buffer;
}

// ---- the ops ----

Rnn describe(int64_t mode, const SymInt& hidden_size, const SymInt& proj_size, int64_t layers,
             int64_t weights_per_layer, bool batch_first, double dropout, bool train,
             bool bidirectional, SymIntArrayRef batch_sizes) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(batch_sizes);
  return {mode,
          hidden_size.expect_int(),
          proj_size.expect_int(),
          layers,
          weights_per_layer,
          batch_first,
          train,
          bidirectional,
          dropout,
          {sizes.begin(), sizes.end()}};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> cudnn_rnn(
    const Tensor& input, TensorList weights, int64_t weights_per_layer, const MaybeTensor& buffer,
    const Tensor& hx, const MaybeTensor& cx, int64_t mode, SymInt hidden_size, SymInt proj_size,
    int64_t layers, bool batch_first, double dropout, bool train, bool bidirectional,
    SymIntArrayRef batch_sizes, const MaybeTensor& dropout_state) {
  at::native::check_attributes(input, weights, {hx, or_undefined(cx)}, /*check_dtype=*/true);
  if (!given(buffer) && !machine.hollow) {
    TORCH_WARN(
        "RNN module weights are not part of single contiguous chunk of memory. This means they "
        "need to be compacted at every call, possibly greatly increasing memory usage. To compact "
        "weights again call flatten_parameters().");
  }
  TORCH_CHECK(mode == rnn_lstm || !given(cx), "rnn: illegal defined cx for non-LSTM RNN");
  TORCH_CHECK(hx.is_contiguous(), "rnn: hx is not contiguous");
  TORCH_CHECK(!given(cx) || cx->is_contiguous(), "rnn: cx is not contiguous");
  auto rnn = describe(mode, hidden_size, proj_size, layers, weights_per_layer, batch_first, dropout,
                      train, bidirectional, batch_sizes);
  rnn.differentiable = at::GradMode::is_enabled() &&
                       std::any_of(weights.begin(), weights.end(),
                                   [](const Tensor& weight) { return weight.requires_grad(); });
  const auto reserve = make_reserve(rnn, input, rnn.drops() ? next_seed(dropout_state) : 0);
  auto [output, hy, cy] = on_host(&forward, input, weights.vec(), hx, cx, rnn, reserve);
  return {output, hy, cy, reserve,
          given(buffer) ? *buffer : at::empty({total_of(weights)}, input.options())};
}

std::tuple<Tensor, Tensor, Tensor, std::vector<Tensor>> cudnn_rnn_backward(
    const Tensor& input, TensorList weights, int64_t weights_per_layer, const Tensor&,
    const Tensor& hx, const MaybeTensor& cx, const Tensor&, const MaybeTensor& grad_output,
    const MaybeTensor& grad_hy, const MaybeTensor& grad_cy, int64_t mode, SymInt hidden_size,
    SymInt proj_size, int64_t layers, bool batch_first, double dropout, bool train,
    bool bidirectional, SymIntArrayRef batch_sizes, const MaybeTensor&, const Tensor& reserve,
    std::array<bool, 4> needed) {
  if (!given(grad_output) && !given(grad_hy) && !given(grad_cy)) {
    return {Tensor(), Tensor(), Tensor(), std::vector<Tensor>(weights.size())};
  }
  TORCH_CHECK(train, "cudnn RNN backward can only be called in training mode");
  const auto rnn = describe(mode, hidden_size, proj_size, layers, weights_per_layer, batch_first,
                            dropout, train, bidirectional, batch_sizes);
  auto [grad_input, grad_hx, grad_cx, grad_weights] = on_host(
      &backward_here, input, weights.vec(), hx, cx, grad_output, grad_hy, grad_cy, rnn, reserve);
  return {needed[0] ? grad_input : Tensor(), needed[1] ? grad_hx : Tensor(),
          needed[2] ? grad_cx : Tensor(),
          needed[3] ? grad_weights : std::vector<Tensor>(weights.size())};
}

}  // namespace

ANYDEVICE_IMPL(aten, CUDA, m) {
  m.impl("_cudnn_rnn", &cudnn_rnn);
  m.impl("_cudnn_rnn_backward", &cudnn_rnn_backward);
  m.impl("_cudnn_rnn_flatten_weight", &flatten_weight);
  m.impl("_cudnn_init_dropout_state", &init_dropout_state);
}

}  // namespace anydevice::kernels
