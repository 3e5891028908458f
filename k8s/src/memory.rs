//! Checks that a job can fit the memory of its pods and GPUs, if the benchmark file states it:
//! otherwise the job would fail only on its nodes.

use super::benchmark::{Benchmark, Platform};
use super::names::quantity;
use super::trainer::{Memory, NoRoom, Ranks, Workload};
use crate::error::{Error, Result};
use record::peaks;

/// Label of NVIDIA's GPU feature discovery: the name of a node's GPUs.
const PRODUCT: &str = "nvidia.com/gpu.product";

/// Label of GKE: the kind of a node's GPUs.
const ACCELERATOR: &str = "cloud.google.com/gke-accelerator";

/// Values of this label, and GiB of such a GPU:
/// <https://cloud.google.com/kubernetes-engine/docs/how-to/gpus>.
const ACCELERATORS: [(&str, u64); 7] = [
    ("nvidia-l4", 24),
    ("nvidia-tesla-a100", 40),
    ("nvidia-a100-80gb", 80),
    ("nvidia-h100-80gb", 80),
    ("nvidia-h100-mega-80gb", 80),
    ("nvidia-h200-141gb", 141),
    ("nvidia-b200", 180),
];

/// Memory of a worker's GPUs, and the key of the benchmark file that sets it.
struct GpuMemory {
    key: &'static str,
    bytes: u64,
}

/// Refuses a workload that needs more memory than a worker or its GPUs have.
pub(super) fn check(benchmark: &Benchmark, workload: &dyn Workload) -> Result<()> {
    let per_node = benchmark.workload.ranks_per_node() as usize;
    let ranks = Ranks { world: benchmark.world(), per_node };
    let platform = &benchmark.platform;
    let gpu = gpu_memory(platform);
    let memory = Memory {
        pod_bytes: platform.memory.as_deref().and_then(bytes),
        gpu_bytes: gpu.as_ref().map(|gpu| gpu.bytes),
    };
    let of_gpu = gpu.map_or("platform.gpu_memory", |gpu| gpu.key);
    workload.check_memory(ranks, memory).map_err(|no_room| {
        let (key, text) = match no_room {
            NoRoom::Refused(text) => return Error::Refused(text),
            NoRoom::Gpu(text) => (of_gpu, text),
            NoRoom::Pod(text) => ("platform.memory", text),
        };
        Error::Refused(format!("{key}: workload.workload does not fit: {text}"))
    })
}

/// Bytes of a Kubernetes quantity, whose suffix `G` is 10^9.
fn bytes(text: &str) -> Option<u64> {
    quantity(text).map(|value| value as u64)
}

fn gpu_memory(platform: &Platform) -> Option<GpuMemory> {
    let by_key = || {
        let bytes = bytes(platform.gpu_memory.as_deref()?)?;
        Some(GpuMemory { key: "platform.gpu_memory", bytes })
    };
    let of_label = |bytes: u64| GpuMemory { key: "platform.node_labels", bytes };
    let by_product = || peaks::memory_bytes_of_product(platform.node_labels.get(PRODUCT)?);
    let by_accelerator = || {
        let kind = platform.node_labels.get(ACCELERATOR)?;
        let (_, gib) = ACCELERATORS.iter().find(|(name, _)| name == kind)?;
        Some(gib << 30)
    };
    by_key().or_else(|| by_product().or_else(by_accelerator).map(of_label))
}
