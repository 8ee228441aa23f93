"""Layer times of a training run from Sailor's profiles, which were taken of a two-layer model."""

from __future__ import annotations

from heterps_configs.importers.sailor import SailorLayerTimes, SailorModel, SailorShape
from heterps_configs.importers.sailor_gpus import sailor_gpu
from heterps_configs.importers.sailor_runs import SailorGroup

# The profiler builds the embedding, this many equal transformer layers, and the head.
PROFILED_LAYERS = 2
# A gradient is read, the new one is read, and the sum is written, in float32.
ACCUMULATION_BYTES_PER_PARAMETER = 12


def group_times(
    model: SailorModel, group: SailorGroup, micro_batch_size: int
) -> tuple[SailorLayerTimes, ...]:
    """Seconds of all layers on a tensor-parallel group, in a run.

    Three things stand differently in the profile than they happen in a run:

    * Fewer samples cannot take longer. For small micro-batches the host is slower than the GPU,
      and what was measured once varies by half; so the time of a layer is the least of those of
      the same and of larger micro-batches.
    * A run adds the gradients of all its micro-batches; the profiler has one micro-batch a step,
      and the first gradient is only stored. The sum costs three passes over the gradients at the
      GPU's memory bandwidth.
    * The third number is one optimizer step of the whole profiled model (embedding, two layers and
      head), and stands beside every layer. Adam is bound by memory, so a layer takes its share of
      the parameters.

    The embedding's backward pass has no time in the profile (no gradient leaves it). By its bytes
    it is below 0.1 % of a micro-batch and left out.

    Raises:
        HeterpsError: Nobody measured that GPU type, micro-batch size and degree.
    """
    shape = SailorShape(group.gpu, micro_batch_size, group.tensor_parallel)
    measured = [model.layer_times(shape)] + [
        times
        for other, times in model.times.items()
        if (other.gpu, other.tensor_parallel) == (shape.gpu, shape.tensor_parallel)
        and other.micro_batch_size > micro_batch_size
    ]
    sizes = model.layer_sizes(group.tensor_parallel)
    profiled = [*range(min(1 + PROFILED_LAYERS, len(sizes) - 1)), len(sizes) - 1]
    profiled_parameters = sum(sizes[index].parameters for index in profiled)
    bandwidth = sailor_gpu(group.gpu).memory_bandwidth_bytes_per_s
    return tuple(
        SailorLayerTimes(
            min(times[index].forward_s for times in measured),
            min(times[index].backward_s for times in measured)
            + ACCUMULATION_BYTES_PER_PARAMETER * size.parameters / bandwidth,
            measured[0][index].update_s * size.parameters / max(profiled_parameters, 1),
        )
        for index, size in enumerate(sizes)
    )
