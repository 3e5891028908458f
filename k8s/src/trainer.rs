//! Interface to the trainer that runs in jobs, as far as rendering needs it.

use std::fmt::Debug;

/// Trainer of the version that renders.
pub trait Trainer {
    /// Returns whether a workload of this name is built in.
    fn is_preset(&self, name: &str) -> bool;

    /// Loads the workload that `train` runs with these arguments.
    ///
    /// # Errors
    /// Reason why `train` refuses it, or a setting with a secret, which a job would expose.
    fn load(&self, arguments: &[String]) -> Result<Box<dyn Workload>, String>;

    /// Checks names of the doctor's checks.
    ///
    /// # Errors
    /// A name that no check has.
    fn require_checks(&self, names: &[String]) -> Result<(), String>;
}

/// A workload with the settings of its run.
pub trait Workload: Debug {
    /// Name of the preset or of the file.
    fn name(&self) -> &str;

    /// Id of the workload, if it does not depend on the content of data files.
    fn id(&self) -> Option<String>;

    /// Returns whether it runs on CUDA devices.
    fn is_on_cuda(&self) -> bool;

    /// Paths and URLs that the workload reads.
    fn inputs(&self) -> Vec<&str>;

    /// Checks that the batch divides among this number of ranks.
    ///
    /// # Errors
    /// The key that does not fit.
    fn check(&self, world: usize) -> Result<(), String>;

    /// Checks whether a rank fits. A refused workload certainly does not fit: the threads of the
    /// nodes are not known, so the plan is that of one thread, and an estimate may be too high.
    ///
    /// # Errors
    /// The memory that does not suffice, and the reason.
    fn check_memory(&self, ranks: Ranks, memory: Memory) -> Result<(), NoRoom>;
}

/// Ranks of a job.
#[derive(Debug, Clone, Copy)]
pub struct Ranks {
    /// Number of all ranks.
    pub world: usize,
    /// Number of ranks of a node.
    pub per_node: usize,
}

/// Memory of a node, if known.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Bytes of the pod.
    pub pod_bytes: Option<u64>,
    /// Bytes of each GPU.
    pub gpu_bytes: Option<u64>,
}

/// Error of a workload that does not fit its memory.
#[derive(Debug)]
pub enum NoRoom {
    /// There is no plan, whatever the memory: the invalid key.
    Refused(String),
    /// The GPU's memory does not suffice: the reason.
    Gpu(String),
    /// The pod's memory does not suffice: the reason.
    Pod(String),
}
