//! Training: the same losses and weights whatever the ranks, the processor, the transport and the
//! source of the data, and in folders of Hugging Face.

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
