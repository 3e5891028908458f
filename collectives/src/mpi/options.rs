//! How to open MPI.

use std::time::Duration;

/// How to open MPI.
#[derive(Debug, Clone)]
pub struct MpiOptions {
    /// Most elements of one message. Longer buffers go out in chunks of this many.
    pub chunk_elements_max: usize,
    /// Patience with MPI_Init.
    pub open_timeout: Duration,
    /// Patience of a scope's end with operations that nobody waited for.
    pub timeout: Duration,
    /// Patience of a drop with the other ranks, which must come to MPI_Finalize too.
    pub close_timeout: Duration,
    /// Whether the ranks of one node move the data channel's collective operations through memory
    /// that they share, so that MPI moves only what is between nodes. Holds if all ranks say so.
    pub node_shared: bool,
    /// Pretend that rank r of this machine is on the r-th of these nodes, given by any numbers: to
    /// try on one machine what several do. Empty: all are on one.
    pub pretended_nodes: Vec<usize>,
}

impl Default for MpiOptions {
    fn default() -> Self {
        Self {
            // 1 GiB of f64: MPI libraries also keep byte counts in 32 bits here and there.
            chunk_elements_max: 1 << 27,
            open_timeout: Duration::from_secs(120),
            timeout: Duration::from_secs(120),
            close_timeout: Duration::from_secs(10),
            node_shared: true,
            pretended_nodes: Vec::new(),
        }
    }
}
