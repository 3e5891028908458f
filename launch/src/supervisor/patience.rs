//! How long a supervisor waits for hosts, ranks and storage before it gives them up.

use std::time::Duration;

/// Timeouts of a supervisor.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Timeout of a connection until the agent identifies itself.
    pub hello: Duration,
    /// Extra time for hosts that are listed first.
    pub preference: Duration,
    /// Time for a host whose connection ended to answer again.
    pub reconnect: Duration,
    /// Time in which the other ranks end after the first rank of a successful run.
    pub together: Duration,
    /// Time for ranks to record that a peer is lost.
    pub loss: Duration,
    /// Time for `mpirun` to end after all ranks, so that it reports how they ended. After a rank
    /// fails, it waits for some seconds.
    pub mpirun_end: Duration,
    /// Time for `mpirun` to end after SIGTERM.
    pub mpirun_termination: Duration,
    /// Time for hosts to report that no rank is left.
    pub clear: Duration,
    /// Time for storage to answer once an attempt has ended.
    pub storage: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self::percent(100)
    }
}

impl Patience {
    /// Returns this percentage of the default timeouts, for tests.
    pub fn percent(percent: u32) -> Self {
        let scaled = |seconds| Duration::from_secs(seconds) * percent / 100;
        Self {
            hello: scaled(20),
            preference: scaled(2),
            reconnect: scaled(3),
            together: scaled(2),
            loss: scaled(15),
            mpirun_end: scaled(8),
            mpirun_termination: scaled(3),
            clear: scaled(8),
            storage: scaled(20),
        }
    }
}
