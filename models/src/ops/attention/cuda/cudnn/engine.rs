//! Choice of the engine that computes the gradient: one that adds in a fixed order.
//!
//! cuDNN marks no engine of this operation as nondeterministic, not even those that add to dq
//! atomically, so the choice cannot be left to its heuristic. NVIDIA's cudnn-frontend 1.32
//! documents the deterministic choices for its own graphs
//! (`include/cudnn_frontend/node/scaled_dot_product_flash_attention.h`): Blackwell's engine with
//! `STAGES = 2`, Hopper's with `STAGES = 4`, which orders the sums of dq, and before Hopper the
//! graph that keeps the gradients of scores and multiplies them by k. Engines of the single
//! operation that is used here have other numbers; with cuDNN 9.28.1 they take the same tiles and
//! stages and need the same bytes of workspace.

use device::cuda::ComputeCapability;
use device::cuda::cudnn::Knob;

/// An engine of cuDNN's backward, and how it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Engine {
    /// Its number.
    pub(super) index: i64,
    tile_m: i64,
    tile_n: i64,
    stages: i64,
}

/// Keeps the gradients of scores: workspace grows with T squared.
const AMPERE: Engine = Engine { index: 12, tile_m: 2, tile_n: 1, stages: 2 };
const HOPPER: Engine = Engine { index: 13, tile_m: 2, tile_n: 1, stages: 4 };
const BLACKWELL: Engine = Engine { index: 14, tile_m: 3, tile_n: 2, stages: 2 };

impl Engine {
    /// The one that adds in a fixed order on devices of this kind; `None` where none is known.
    pub(super) fn deterministic(capability: ComputeCapability) -> Option<Self> {
        match capability.major {
            8 => Some(AMPERE),
            9 => Some(HOPPER),
            10 => Some(BLACKWELL),
            _ => None,
        }
    }

    /// Its settings.
    pub(super) fn knobs(&self) -> [(Knob, i64); 6] {
        [
            (Knob::TILE_M, self.tile_m),
            (Knob::TILE_N, self.tile_n),
            (Knob::KERNEL_CFG, 2),
            (Knob::STREAM_K, 0),
            (Knob::TILE_CGA_M, 0),
            (Knob::STAGES, self.stages),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_generation_has_its_engine_and_an_unknown_one_none() {
        let index = |major, minor| {
            let capability = ComputeCapability { major, minor };
            Engine::deterministic(capability).map(|engine| engine.index)
        };
        assert_eq!([index(8, 0), index(8, 9), index(9, 0)], [Some(12), Some(12), Some(13)]);
        assert_eq!([index(10, 0), index(10, 3), index(12, 0)], [Some(14), Some(14), None]);
    }
}
