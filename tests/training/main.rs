//! Training: the same losses and weights whatever the ranks, the processor, the transport and the
//! source of the data, and in folders of Hugging Face.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "mpi")]
mod determinism;
mod export;
#[cfg(feature = "mpi")]
mod object_data;
mod one_process;
#[cfg(target_arch = "x86_64")]
mod processors;
mod real_text;
#[cfg(feature = "mpi")]
mod sharded_page;
#[cfg(feature = "mpi")]
mod sharding;
#[cfg(feature = "mpi")]
mod shared_memory_fallback;

/// Entry point of a rank of `support::denied_ranks`, which is not a test by itself.
#[cfg(feature = "mpi")]
#[test]
fn rank_of_a_job() {
    support::denied_ranks::become_yardstick();
}
