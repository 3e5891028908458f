//! The trainer that runs in jobs, as far as rendering has to ask it.

use std::fmt::Debug;

/// The trainer of the version that renders.
pub trait Trainer {
    /// Returns whether a workload of this name is built in.
    fn is_preset(&self, name: &str) -> bool;

    /// The workload that `train` runs with these arguments.
    ///
    /// # Errors
    /// Why `train` refuses it, or which setting has a secret, which a job would show.
    fn load(&self, arguments: &[String]) -> Result<Box<dyn Workload>, String>;

    /// Checks names of the doctor's checks.
    ///
    /// # Errors
    /// A name that no check has.
    fn require_checks(&self, names: &[String]) -> Result<(), String>;
}

/// A workload with the settings of its run.
pub trait Workload: Debug {
    /// Its name: of a preset, or of its file.
    fn name(&self) -> &str;

    /// Its id, where that does not depend on the content of data files.
    fn id(&self) -> Option<String>;

    /// Returns whether it runs on CUDA devices.
    fn is_on_cuda(&self) -> bool;

    /// Paths and URLs that it reads.
    fn inputs(&self) -> Vec<&str>;

    /// Checks that its batch divides among so many ranks.
    ///
    /// # Errors
    /// The key that does not fit.
    fn check(&self, world: usize) -> Result<(), String>;

    /// Checks whether a rank fits. What is refused does not fit for sure: threads of the nodes are
    /// not known, so the plan is that of one, and an estimate may be too high.
    ///
    /// # Errors
    /// What does not fit, and why.
    fn check_memory(&self, ranks: Ranks, memory: Memory) -> Result<(), NoRoom>;
}

/// Ranks of a job.
#[derive(Debug, Clone, Copy)]
pub struct Ranks {
    /// All of them.
    pub world: usize,
    /// Those of a node.
    pub per_node: usize,
}

/// Memory of a node, where it is known.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Bytes of its pod.
    pub pod_bytes: Option<u64>,
    /// Bytes of each of its GPUs.
    pub gpu_bytes: Option<u64>,
}

/// Memory that does not suffice.
#[derive(Debug)]
pub enum NoRoom {
    /// There is no plan, whatever the memory: the key that is wrong.
    Refused(String),
    /// That of a GPU, and why.
    Gpu(String),
    /// That of the pod, and why.
    Pod(String),
}
