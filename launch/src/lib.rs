//! How ranks start and stop: MPI bootstrap, topology, binding, signals.
//!
//! [`bootstrap::open`] turns whatever started this process (nothing, `mpirun`, `srun`) into a
//! [`World`]: a collective to talk over, and the [`Placement`] of this rank on its node. MPI is
//! initialised only when a launcher's variables are in the environment, or when asked for.

mod binding;
pub mod bootstrap;
pub mod cgroup;
pub mod environment;
mod error;
mod group;
pub mod host;
pub mod memory;
pub mod signals;
pub mod threads;
pub mod topology;

pub use bootstrap::{Backend, Options, World};
pub use environment::{Launcher, LauncherKind};
pub use error::Error;
pub use group::Group;
pub use host::Environment;
pub use memory::available_memory_bytes;
pub use signals::StopFlag;
pub use topology::Placement;
