//! The oracle against finite differences, and the fused engine's ops and blocks against the oracle.

mod blocks;
mod engine;
mod llama_ops;
mod ops;
