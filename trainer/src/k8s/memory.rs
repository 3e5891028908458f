//! Whether a job can fit the memory of its pods and GPUs, as far as the benchmark file says what
//! that is: otherwise it would fail only on its nodes.

use super::benchmark::{Benchmark, Platform};
use super::names::quantity;
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::plan::{JobShape, RankPlan};
use record::peaks;

/// Label of NVIDIA's GPU feature discovery: the name of a node's GPUs.
const PRODUCT: &str = "nvidia.com/gpu.product";

/// Label of GKE: the kind of a node's GPUs.
const ACCELERATOR: &str = "cloud.google.com/gke-accelerator";

/// Its values, and GiB of such a GPU:
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

/// Memory of a worker's GPUs, and the key of the benchmark file that says so.
struct GpuMemory {
    key: &'static str,
    bytes: u64,
}

/// Fails with exit code 2 for what needs more memory than a worker or its GPUs have. What is
/// refused does not fit for sure: threads of the nodes are not known, so the plan is that of one,
/// and an estimate may be too high.
pub(super) fn check(benchmark: &Benchmark, config: &Config) -> Outcome<()> {
    let shape = JobShape {
        world: benchmark.world(),
        local: benchmark.workload.ranks_per_node() as usize,
        threads: 1,
        shares_memory: true,
    };
    let platform = &benchmark.platform;
    let of_pod = platform.memory.as_deref().and_then(bytes);
    let mut plan = RankPlan::new(config, shape, None)?.on_machine(of_pod);
    if let Some(GpuMemory { key, bytes }) = gpu_memory(platform) {
        plan = plan.with_device_memory(bytes);
        let required = plan.require_on_device("the memory of a worker's GPU does not suffice");
        required.map_err(|failure| refused(key, &failure))?;
    }
    let least = plan.total_bytes.saturating_sub(plan.tolerance_bytes());
    if of_pod.is_some_and(|bytes| least <= bytes / shape.local as u64) {
        return Ok(());
    }
    plan.require_on_machine("a worker").map_err(|failure| refused("platform.memory", &failure))
}

fn refused(key: &str, failure: &Failure) -> Failure {
    Failure::usage(format!("{key}: workload.workload does not fit: {failure}"))
}

/// Of a quantity of Kubernetes, where `64G` has a thousand million bytes for each.
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
