//! `report --gap` of a step that saves on a slow disk: the gap of saves grows by the time that the
//! disk takes longer, within a tenth of it.

use std::time::Duration;

use crate::faults::{Effect, Fault, Operation};
use crate::mount::Mounted;
use support::{Folder, GapGrowth, StepGap, assert_gap_grows_as_planted};

/// Time of a write, of which the save has six.
const SLOW: Duration = Duration::from_millis(150);

/// Saves in the foreground after the third step, on this disk, and reports the gap of the next one,
/// in which the time of a save is counted.
fn gap_on(mounted: &Mounted) -> StepGap {
    let folder = Folder::inside(mounted.path());
    let settings = ["checkpoint.background=false", "checkpoint.at_end=false"];
    let settings = settings.map(|setting| ["--set", setting]);
    let steps = ["--checkpoint-every", "3steps", "--steps", "4", "--profile-step", "4"];
    folder.train(&[&steps[..], settings.as_flattened()].concat()).expect(0);
    StepGap::of(&folder, &[])
}

#[test]
#[ignore = "needs /dev/fuse and root"]
fn a_slow_disk_is_the_gap_of_saves() {
    let mounted = Mounted::new();
    assert_gap_grows_as_planted(|| {
        let before = gap_on(&mounted);
        let (operation, name) = (Operation::Write, ".safetensors");
        mounted.set(Some(Fault::Named { operation, name, effect: Effect::Slow(SLOW) }));
        let after = gap_on(&mounted);
        let planted_ms = 1e3 * SLOW.as_secs_f64() * mounted.hits() as f64;
        mounted.set(None);
        GapGrowth::new(&before, &after, &["checkpoint"], planted_ms)
    });
}
