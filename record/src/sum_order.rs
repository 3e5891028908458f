//! Order in which a run adds up: the bits of its losses depend on it.

use serde::{Deserialize, Serialize};

/// Key of bits: runs of one workload that differ in it agree to rounding only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SumOrder {
    /// Model of the GPUs; on processors, the instruction set of the matmul.
    pub device: String,
    /// Nodes and their ranks, as in `2 x 8` or `8 + 4`, with the sharded state and the sizes of
    /// the dimensions of ranks.
    pub topology: String,
    /// Version of NCCL, algorithm and protocol if they are set, and the transports between ranks;
    /// `None` where NCCL adds up nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl: Option<String>,
}

impl SumOrder {
    /// Lists the parts in which it differs from another one, that of golden losses.
    pub(crate) fn differences(&self, golden: &Self) -> Vec<String> {
        let nccl = |order: &Self| order.nccl.clone().unwrap_or_else(|| "none".to_owned());
        differences(&[
            ["device", &self.device, &golden.device],
            ["topology", &self.topology, &golden.topology],
            ["NCCL", &nccl(self), &nccl(golden)],
        ])
    }
}

/// Lists the parts of a key that differ: each is a name, the value of a run, and the golden one.
pub(crate) fn differences(parts: &[[&str; 3]]) -> Vec<String> {
    let differing = parts.iter().filter(|[_, found, golden]| found != golden);
    differing.map(|[name, found, golden]| format!("{name} {found} (golden: {golden})")).collect()
}
