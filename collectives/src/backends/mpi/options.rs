//! Options of the MPI backend.

use std::time::Duration;

/// Options for opening MPI.
#[derive(Debug, Clone)]
pub struct MpiOptions {
    /// Most elements of one MPI message. Longer buffers are sent as several.
    pub message_elements_max: usize,
    /// Timeout of MPI_Init, which waits for all ranks.
    pub open_timeout: Duration,
    /// Timeout at the end of a buffer for operations that the caller did not wait for.
    pub timeout: Duration,
    /// Timeout of dropping the backend, during which the other ranks must call MPI_Finalize too.
    pub close_timeout: Duration,
    /// Lets the ranks of one node reduce through shared memory, in buffers of `dyn Collective`'s
    /// `buffer`, so that MPI only moves data between nodes. Off on all ranks if it is off on one.
    pub shared_memory: bool,
    /// Simulated nodes for tests on one machine: rank r is on the r-th of these nodes, which are
    /// given by any numbers. Empty: all ranks are on one.
    pub simulated_nodes: Vec<usize>,
}

impl Default for MpiOptions {
    fn default() -> Self {
        Self {
            // 1 GiB of f64: some places in MPI libraries keep byte counts in 32 bits.
            message_elements_max: 1 << 27,
            open_timeout: Duration::from_secs(120),
            timeout: Duration::from_secs(120),
            close_timeout: Duration::from_secs(10),
            shared_memory: true,
            simulated_nodes: Vec::new(),
        }
    }
}
