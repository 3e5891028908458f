//! Training on a CUDA device allocates nothing in the steady state: after step 3 the training
//! thread never calls the allocator.
//!
//! Needs the emulated device: `make test-cuda-emulated`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../allocations/steady_state.rs"]
mod steady_state;

use collectives::Single;
use device::Device;
use device::cuda::Cuda;
use steady_state::Training;
use support::Variant;
use support::counting::Counting;
use trainer::mesh::Mesh;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn one_rank_allocates_nothing() {
    let settings = [
        "run.device=cuda",
        "batch.sequence_tokens=16",
        "batch.global_sequences=2",
        "batch.micro_sequences=1",
    ];
    for variant in Variant::corners() {
        let device = Device::Cuda(Cuda::open(0).unwrap());
        let single = Single::new();
        let mesh = Mesh::flat(&single, &single);
        let training = Training { device, mesh, threads: 1, settings: &settings };
        assert_eq!(training.allocations(variant), 0, "{variant:?}");
    }
}
