//! The engine on a CUDA device: the same blocks, buffers and gradients as the CPU's, by kernels and
//! cuBLASLt.
//!
//! Everything is started in the order of one stream, and nothing waits for it: the loss stays on
//! the device. Where the CPU adds a residual or applies GELU in a product's epilogue, cuBLASLt does
//! too; RoPE, attention, norms and SwiGLU are kernels of their own.
//!
//! `buffers.rs` allocates, `kernels.rs` compiles, `layers.rs` has the linear layers with all their
//! gradients, `block.rs` one block, `network.rs` the whole model, `batch.rs` brings tokens to the
//! device, `probe/` runs single operations for measuring them.

mod batch;
mod block;
mod buffers;
mod kernels;
mod layers;
mod network;
mod probe;

pub(super) use network::Network;
pub use probe::CudaProbe;
