//! The backends, each an implementation of [`Collective`](crate::Collective).
//!
//! To add one:
//!
//! 1. Implement [`Collective`](crate::Collective) in a module here. Its section on safety defines
//!    when a buffer is free again. Sums have the order of ranks: use `stages::sum`. Export the type
//!    from this crate. Put a backend with a dependency behind a cargo feature, like `mpi`.
//! 2. Run [`contract::run_all`](crate::contract::run_all) on it, and the functions of
//!    [`contract::failures`](crate::contract::failures) that make a backend unusable: in
//!    `collectives/tests/contract.rs`, or in `collectives/tests/mpi/` if it needs a launcher.
//! 3. Give it a name: a variant of `Backend` in `launch/src/bootstrap/options.rs`, which is the
//!    value of `collectives.backend` in a configuration. `choose` and `open` in
//!    `launch/src/bootstrap/mod.rs` choose and open it, and `Group` next to them closes it.
//!    `Threads` has no name there: only tests use it. One for the memory of devices, as `nccl`, is
//!    opened by `trainer/src/run/rank_backend.rs`, over one for the host's.
//! 4. Add the memory that it needs to [`Footprint`](crate::Footprint), for the memory plan.

pub(crate) mod footprint;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
pub(crate) mod nccl;
pub(crate) mod single;
pub(crate) mod threads;
