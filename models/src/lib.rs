//! Computation: workloads, parameter layout, memory plan, FLOP accounting, ops and engines.
//!
//! This crate never sees a rank, a file or a network. Shapes are named the same everywhere:
//! B sequences per rank and micro-batch, T tokens, C width, H heads, D head width, F feed-forward
//! width, V vocabulary, L layers, N parameters.

pub mod candle;
pub mod config;
mod digest;
pub mod engine;
mod error;
pub mod flops;
pub mod fused;
pub mod init;
pub mod layout;
pub mod memory;
pub mod meter;
mod network;
pub mod ops;
pub mod presets;
pub mod rng;
pub mod tuning;
mod weight_shape;
mod weights;
pub mod workload;

pub use candle::Candle;
pub use config::{MicroBatch, ModelConfig};
pub use digest::digest_elements;
pub use engine::{Batch, Model, Pass, StepSink, WeightSource};
pub use error::Error;
pub use init::{init_elements, init_weights};
pub use layout::{Layout, Uses};
pub use meter::Meter;
pub use ops::matmul::Sums;
pub use weight_shape::weight_shape;
pub use weights::Weights;
pub use workload::Workload;
