"""FLOPs of an operation from shapes: torch's formulas, those that it lacks, and which have none.

A multiply-add is two. Convolutions count as dense kernels compute them: products with the zeros of
the padding included. What reads and writes each number a few times (activations, norms, reductions,
copies) has no FLOPs: its time is that of its bytes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

# Linear in the numbers that they read and write; pointwise operations, reductions and views are
# told by their tags.
_LINEAR_NAMES = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d affine_grid_generator
    arange argsort as_strided as_strided_scatter _assert_async avg_pool2d avg_pool3d
    batch_norm_backward _batch_norm_with_update bernoulli binary_cross_entropy
    binary_cross_entropy_with_logits bincount bucketize cat channel_shuffle clone col2im
    complex constant_pad_nd copy _ctc_loss _ctc_loss_backward cummax cummin cumprod
    cumsum diagonal_backward diagonal_scatter embedding _embedding_bag _embedding_bag_dense_backward
    _embedding_bag_forward_only _embedding_bag_per_sample_weights_backward
    embedding_dense_backward embedding_renorm empty empty_like empty_strided equal
    exponential eye fill flip floor_divide fractional_max_pool2d fractional_max_pool3d full
    full_like _fused_dropout _fused_rms_norm gather glu grid_sampler_2d hardswish
    hardtanh_backward histc huber_loss im2col index index_add index_copy index_fill
    index_put index_select is_same_size item kl_div kthvalue lift_fresh linalg_vector_norm
    linspace _local_scalar_dense log_sigmoid log_sigmoid_forward _log_softmax
    _log_softmax_backward_data logcumsumexp logsumexp masked_fill masked_scatter
    masked_select max_pool2d_with_indices max_pool3d_with_indices median mode mse_loss
    multinomial native_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_functional native_dropout native_group_norm native_layer_norm
    new_empty new_empty_strided new_full new_ones new_zeros nll_loss2d_backward
    nll_loss2d_forward nll_loss_backward nll_loss_forward nonzero normal one_hot ones
    ones_like pixel_shuffle pixel_unshuffle polar prelu _prelu_kernel rand rand_like randint
    randint_like randn randn_like random randperm real reflection_pad1d reflection_pad2d
    repeat replication_pad1d replication_pad2d resize roll rrelu_with_noise _safe_softmax
    scalar_tensor scatter scatter_add scatter_reduce searchsorted select_backward
    select_scatter set slice_backward slice_scatter smooth_l1_loss soft_margin_loss _softmax
    _softmax_backward_data softshrink sort split_with_sizes_copy stack std std_mean take
    _to_copy topk trace tril tril_indices triu triu_indices unfold_backward unfold_copy
    uniform _unique2 unique_dim unsafe_chunk _unsafe_index _unsafe_index_put unsafe_split
    unsafe_split_with_sizes _unsafe_view upsample_bicubic2d upsample_bilinear2d
    _upsample_bilinear2d_aa upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d _upsample_nearest_exact2d upsample_trilinear3d var var_mean
    view_as_real _weight_norm_interface where zero zeros zeros_like
"""
_LINEAR = frozenset(_LINEAR_NAMES.split())


class UncountedOperations:
    """Operations that no formula counts, and how often they ran."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, operation: Any) -> None:
        """Counts a call of an operation without a formula, unless it is linear in its bytes."""
        if not _is_linear(operation):
            self._counts[operation._schema.name] += 1

    def warn(self, model: str) -> None:
        """One warning that names them all; none where all were counted.

        Args:
            model: Its name.
        """
        if self._counts:
            names = ", ".join(f"{name} ({n} x)" for name, n in sorted(self._counts.items()))
            warnings.warn(
                f"{model}: FLOPs are not counted, for want of a formula, of {names}", stacklevel=2
            )


def has_formula(operation: Any) -> bool:
    """Whether an operation has FLOPs that `flops_of` knows."""
    return operation._schema.name in _FORMULAS or operation._overloadpacket in flop_registry


def flops_of(operation: Any, args: Any, kwargs: Any, result: Any) -> float | None:
    """FLOPs of one call; None where the operation has no formula.

    Args:
        operation: Overload of an operation.
        args: What it is called with.
        kwargs: The same by name.
        result: What it returned.
    """
    own = _FORMULAS.get(operation._schema.name)
    if own is not None:
        return own(*args, **kwargs)
    formula = flop_registry.get(operation._overloadpacket)
    return None if formula is None else float(formula(*args, **kwargs, out_val=result))


def _is_linear(operation: Any) -> bool:
    tags = operation.tags
    if not any("Tensor" in str(made.type) for made in operation._schema.returns):
        return True  # a question
    if operation.is_view or torch.Tag.pointwise in tags or torch.Tag.reduction in tags:
        return True
    namespace, _, name = operation._schema.name.partition("::")
    if namespace != "aten":
        return False
    name = name.removesuffix("_")
    if name in _LINEAR or name.removesuffix("_backward") in _LINEAR:
        return True
    # The backward pass of an activation, which has no tag of its own.
    forward = getattr(torch.ops.aten, name.removesuffix("_backward"), None)
    return name.endswith("_backward") and any(
        torch.Tag.pointwise in getattr(forward, overload).tags
        for overload in ([] if forward is None else forward.overloads())
    )


def _product(first: Tensor, second: Tensor, *_: Any, **__: Any) -> float:
    """Matrices, in groups or batches: every number of `first` meets a row of `second`."""
    if first.dim() == 2 and second.dim() == 2:  # groups lie along what is summed
        return 2.0 * first.numel() * second.shape[-1]
    if first.dim() == 3 and second.dim() == 2:  # groups lie along the columns of `second`
        return 2.0 * first.shape[-2] * second.numel()
    return 2.0 * first.numel() * second.shape[-1]


def _fallback_backward(first: Tensor, second: Tensor, *_: Any) -> float:
    return 2.0 * _product(first, second)


def _convolution(inputs: Tensor, weight: Tensor, bias: Any, *rest: Any, **__: Any) -> float:
    """Every number of the weight meets each position of the output; transposed, of the input."""
    stride, padding, dilation, is_transposed = rest[:4]
    if is_transposed:
        return 2.0 * inputs.shape[0] * prod(inputs.shape[2:]) * weight.numel()
    positions = (
        (size + 2 * pad - step * (kernel - 1) - 1) // jump + 1
        for size, pad, step, kernel, jump in zip(
            inputs.shape[2:], padding, dilation, weight.shape[2:], stride, strict=True
        )
    )
    return float(2 * inputs.shape[0] * prod(positions) * weight.numel())


def _convolution_backward(
    gradient: Tensor, inputs: Tensor, weight: Tensor, biases: Any, *rest: Any, **__: Any
) -> float:
    """The gradients of input and weight take one product each for every product forward."""
    is_transposed, mask = rest[3], rest[6]
    where = inputs if is_transposed else gradient
    forward = 2.0 * inputs.shape[0] * prod(where.shape[2:]) * weight.numel()
    return forward * sum(map(bool, mask[:2]))


def _recurrent(inputs: Tensor, to_input: Tensor, to_hidden: Tensor, *_: Any, **__: Any) -> float:
    """One layer in one direction; `inputs` are (T, B, I)."""
    steps_and_samples = inputs.shape[0] * inputs.shape[1]
    return 2.0 * steps_and_samples * (to_input.numel() + to_hidden.numel())


def _recurrent_backward(*args: Any, **kwargs: Any) -> float:
    return 2.0 * _recurrent(*args, **kwargs)


def _trilinear(first: Tensor, second: Tensor, third: Tensor, *expand: Any, **__: Any) -> float:
    """One multiply-add for each product of three numbers."""
    tensors = []
    for tensor, new in zip((first, second, third), expand, strict=False):
        for axis in new:
            tensor = tensor.unsqueeze(axis)
        tensors.append(tensor.shape)
    return float(2 * prod(map(max, zip(*tensors, strict=True))))


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> float:
    """Scores, and their product with values; tensors are (..., T, D)."""
    return 2.0 * prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_backward(gradient: Any, *tensors: Any, **__: Any) -> float:
    """Five products instead of two: the scores are computed again."""
    return 2.5 * _attention(*tensors)


def _matrix_vector(matrix: Tensor, *_: Any, **__: Any) -> float:
    return 2.0 * matrix.numel()


def _added_matrix_vector(added: Any, matrix: Tensor, *_: Any, **__: Any) -> float:
    return 2.0 * matrix.numel()


def _added_product(added: Any, first: Tensor, second: Tensor, *_: Any, **__: Any) -> float:
    return _product(first, second)


_FORMULAS: dict[str, Callable[..., float]] = {
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_overrideable": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_grouped_mm": _product,
    "aten::_scaled_grouped_mm": _product,
    "aten::_scaled_grouped_mm_v2": _product,
    "aten::_scaled_mm": _product,
    "aten::_scaled_mm_v2": _product,
    "aten::_int_mm": _product,
    "aten::_addmm_activation": _added_product,
    "aten::addbmm": _added_product,
    "aten::dot": _matrix_vector,
    "aten::vdot": _matrix_vector,
    "aten::mv": _matrix_vector,
    "aten::addmv": _added_matrix_vector,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::mkldnn_rnn_layer": _recurrent,
    "aten::mkldnn_rnn_layer_backward": _recurrent_backward,
    "aten::_trilinear": _trilinear,
    # What transformers calls for experts where torch has no product in groups.
    "transformers::grouped_mm_fallback": _product,
    "transformers::grouped_mm_fallback_backward": _fallback_backward,
}


def is_linear_layer(part: nn.Module) -> bool:
    """Whether a module is a linear layer or plain convolution that holds its own weight.

    Then what it does is known: its weight gradient can be put off, and it can be split.
    """
    if not isinstance(part._parameters.get("weight"), nn.Parameter):
        return False
    if type(part) is nn.Conv2d:
        return part.padding_mode == "zeros" and not isinstance(part.padding, str)
    is_gpt2_linear = type(part).__name__ == "Conv1D"
    return type(part) is nn.Linear or (
        is_gpt2_linear and type(part).__module__.startswith("transformers.")
    )
