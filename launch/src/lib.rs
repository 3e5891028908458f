//! Start and stop of ranks: bootstrap over MPI, placement on nodes and cores, and signals. On
//! clusters, programs run beside ranks: the [`supervisor`] that starts `mpirun`, its [`agent`] on
//! every host, and the [`worker`] that is the first process of a pod. The [`doctor`] checks that
//! hosts are fit for that.
//!
//! [`bootstrap::open`] turns a process, however it was started (by hand, `mpirun`, `srun`), into a
//! [`World`](bootstrap::World): a collective for communication, the [`Placement`] of this rank on
//! its node, and its [`ThreadPlan`]. MPI is initialised only when a launcher's variables are in the
//! environment, or when the MPI backend is requested.

pub mod agent;
pub mod bootstrap;
pub mod doctor;
pub mod environment;
mod error;
mod expected;
pub mod hostfile;
mod launcher;
mod local_ranks;
mod machine;
mod placement;
pub mod signals;
pub mod slurm;
pub mod supervisor;
pub mod worker;

pub use error::Error;
pub use expected::Expected;
pub use launcher::{Launcher, LauncherKind};
pub use machine::{CgroupLimits, available_memory_bytes, machine, node_identity, node_name};
pub use placement::{CORES_MAX, NumaNode, Placement, ThreadPlan, allowed_cores};
