//! `report --gap` of a step under a limit that is planted: a slow link, and a quota of CPU time.
//! The gaps of the rows in which the loss belongs grow by it, within a tenth of it.

use std::path::Path;

use serde_json::Value;

use crate::nodes::{Nodes, SLOW_RATE_BITS};
use crate::quota::Quota;
use support::{
    Folder, GapGrowth, PROBE, StepGap, assert_gap_grows_as_planted, finish, text, yardstick,
};

/// Rate of links that cost next to nothing.
const FAST_RATE_BITS: u64 = 1_000_000_000;

/// Payload of a full frame, and its length on the link, to which rates apply: 1500 bytes after the
/// header of Ethernet, of which IP and TCP with timestamps take 52.
const FRAME_PAYLOAD: f64 = 1448.0 / 1514.0;

/// Time in which a rank sends the gradients of a step once, at this rate of the link.
fn sending_ms(folder: &Folder, bits_per_second: u64) -> f64 {
    let all = folder.record()["ranks"][0]["buckets"].clone();
    let bytes = |bucket: &Value| bucket["bytes"].as_f64().unwrap();
    let bytes: f64 = all.as_array().unwrap().iter().map(bytes).sum();
    8e3 * bytes / (bits_per_second as f64 * FRAME_PAYLOAD)
}

/// Trains on both nodes, and reports the gap of the last step by measured links.
fn gap_on(nodes: &Nodes, links: &Path, folder: &Folder) -> StepGap {
    let out = folder.text();
    let train = ["train", "--out", &out, "--threads", "1", "--set", "telemetry.matmul_probe=0s"];
    let steps = ["--steps", "3", "--profile-step", "3"];
    finish(nodes.mpirun(&[&train[..], &steps].concat())).expect(0);
    StepGap::of(folder, &["--comm", &text(links)])
}

/// In an all-reduce of two ranks each sends a whole buffer, so a slow direction costs the time in
/// which one is sent at the lower rate, less that at the rate of the other links.
#[test]
#[ignore = "adds network namespaces: needs root, and ip and tc of iproute2"]
fn a_slow_link_is_the_gap_of_waiting_for_ranks() {
    assert_gap_grows_as_planted(|| {
        let nodes = Nodes::with_rate(2, FAST_RATE_BITS);
        let [free, limited] = [Folder::new(), Folder::new()];
        let links = free.sibling("comm.json");
        let sizes = ["--min-bytes", "512K", "--max-bytes", "2M"];
        let flags = ["comm", "--json", "--operation", "all-reduce"];
        let measured = finish(nodes.mpirun(&[&flags[..], &sizes].concat())).expect(0);
        std::fs::write(&links, measured.stdout).unwrap();
        let before = gap_on(&nodes, &links, &free);
        nodes.throttle(0, 1);
        let after = gap_on(&nodes, &links, &limited);
        let at = |bits_per_second| sending_ms(&free, bits_per_second);
        let planted_ms = at(SLOW_RATE_BITS) - at(FAST_RATE_BITS);
        GapGrowth::new(&before, &after, &["comm_exposed"], planted_ms)
    });
}

/// Trains with a larger batch, so that the step takes several periods of the quota.
fn train_with(folder: &Folder, quota: Option<&Quota>) -> StepGap {
    let out = folder.text();
    let sizes = ["--set", "batch.global_sequences=64", "--steps", "2", "--profile-step", "2"];
    let train = ["train", "--out", &out, "--threads", "1"];
    let command = yardstick(&[&train[..], &sizes, &PROBE].concat());
    let command = match quota {
        Some(quota) => quota.limit(&command),
        None => command,
    };
    finish(command).expect(0);
    StepGap::of(folder, &[])
}

/// The planted loss is the time in which the kernel let no thread run, by its own accounting. It is
/// in the phases in which threads compute: next to the rank's, one prepares data.
#[test]
#[ignore = "limits the CPU time of a control group: needs root"]
fn a_quota_of_cpu_time_is_the_gap_of_what_computes() {
    assert_gap_grows_as_planted(|| {
        let [free, limited] = [Folder::new(), Folder::new()];
        let before = train_with(&free, None);
        let quota = Quota::new();
        let after = train_with(&limited, Some(&quota));
        let end_ms = limited.steps(0)[after.step() as usize - 1].0["unix_ms"].as_f64().unwrap();
        let throttled_ms = quota.throttled_ms(end_ms - after.step_ms(), end_ms);
        GapGrowth::new(&before, &after, &["data", "forward", "backward", "optimizer"], throttled_ms)
    });
}
