//! What training changes: weights and both Adam moments in flat buffers, and how far it has come.

use half::bf16;
use models::ops::adamw;
use models::workload::Compute;
use models::{Layout, Weights};
use serde::{Deserialize, Serialize};

/// The prefix of the weights' names in a checkpoint.
pub(crate) const WEIGHTS: &str = "model";

/// The state that a checkpoint carries. Every buffer is laid out by the same [`Layout`].
#[derive(Debug)]
pub struct State {
    /// Master weights.
    pub weights: Vec<f32>,
    /// The master weights rounded; empty where the engine computes in f32. Not in checkpoints.
    pub working: Vec<bf16>,
    /// First Adam moment.
    pub exp_avg: Vec<f32>,
    /// Second Adam moment.
    pub exp_avg_sq: Vec<f32>,
    /// How far training has come.
    pub progress: Progress,
}

/// How far training has come. Not all of it follows from the step: another world size may take
/// other global batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Global index of the sequence that the next step begins with.
    pub next_sequence: u64,
    /// Tokens trained on.
    pub tokens: u64,
}

impl State {
    /// Freshly initialised weights and empty moments.
    pub fn new(layout: &Layout, seed: u64, compute: Compute) -> Self {
        let mut weights = vec![0.0; layout.len()];
        models::init_weights(layout, seed, &mut weights);
        let working = match compute {
            Compute::F32 => Vec::new(),
            Compute::Bf16 => vec![bf16::ZERO; layout.len()],
        };
        let mut state = Self {
            weights,
            working,
            exp_avg: vec![0.0; layout.len()],
            exp_avg_sq: vec![0.0; layout.len()],
            progress: Progress::default(),
        };
        state.round_weights();
        state
    }

    /// Makes the working weights from the master weights again.
    pub fn round_weights(&mut self) {
        if !self.working.is_empty() {
            adamw::narrow(&mut self.working, &self.weights);
        }
    }

    /// What the engine computes with.
    pub fn engine_weights(&self) -> Weights<'_> {
        if self.working.is_empty() {
            Weights::F32(&self.weights)
        } else {
            Weights::Bf16(&self.working)
        }
    }

    /// The buffers by the prefix of their tensors' names in a checkpoint.
    pub fn buffers(&self) -> [(&'static str, &[f32]); 3] {
        [
            (WEIGHTS, &self.weights),
            ("optimizer.exp_avg", &self.exp_avg),
            ("optimizer.exp_avg_sq", &self.exp_avg_sq),
        ]
    }

    /// The same, to be filled.
    pub fn buffers_mut(&mut self) -> [(&'static str, &mut [f32]); 3] {
        [
            (WEIGHTS, &mut self.weights),
            ("optimizer.exp_avg", &mut self.exp_avg),
            ("optimizer.exp_avg_sq", &mut self.exp_avg_sq),
        ]
    }

    /// BLAKE3 of all weights in the order of their names: independent of padding and world size.
    pub fn weights_digest(&self, layout: &Layout) -> blake3::Hash {
        let mut tensors: Vec<_> = layout.tensors().iter().collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let mut hasher = blake3::Hasher::new();
        for tensor in tensors {
            hasher.update_rayon(bytemuck::cast_slice(&self.weights[tensor.range.clone()]));
        }
        hasher.finalize()
    }
}
