//! Checkpoints on real files: ranks are threads, or processes where they are killed.
#![allow(clippy::unwrap_used, reason = "helpers of tests too, not only tests, may panic")]

mod agreement;
mod covering;
mod damage;
mod exchange;
mod faulty;
mod fencing;
mod forgery;
mod full_disk;
mod identity;
mod kill;
mod node_scope;
mod partner;
mod promotion;
mod reads;
mod retention;
mod round_trip;
mod saver;
mod support;
mod tiers;

#[allow(dead_code, reason = "the example prints all fields")]
#[path = "../../examples/checkpoint_scale/world.rs"]
mod world;

/// `bench/checkpoint_scale.sh` in small: its assertions hold.
#[test]
fn a_simulated_world_saves_and_is_planned() {
    let folder = tempfile::tempdir().unwrap();
    let measured = world::measure(64, folder.path()).unwrap();
    assert!(measured.manifest_bytes > 64 * 50, "an entry for each rank");
}
