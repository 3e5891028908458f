//! Checkpoints on real files: ranks are threads, or processes where they are killed.
#![allow(clippy::unwrap_used, reason = "helpers of tests too, not only tests, may panic")]

mod agreement;
mod covering;
mod damage;
mod fencing;
mod full_disk;
mod identity;
mod kill;
mod node_scope;
mod promotion;
mod retention;
mod round_trip;
mod saver;
mod support;
mod tiers;
