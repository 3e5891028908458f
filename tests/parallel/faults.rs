//! Lost ranks in the groups of each dimension and of both: named with their places, and no process
//! remains.

use support::{Finished, Folder, finish, mpirun, on_each_rank, supervise};

use super::layout::Layout;

/// Four ranks in the groups of one dimension, or of both, with sharded weights.
const LAYOUTS: [Layout; 3] = [
    Layout { data: 4, shard: 1, sharded: "weights" },
    Layout { data: 1, shard: 4, sharded: "weights" },
    GRID,
];
const GRID: Layout = Layout { data: 2, shard: 2, sharded: "weights" };
const RANKS: usize = 4;

/// Arguments of a run that has an operation of each bucket in flight when a fault happens.
fn arguments(layout: Layout, folder: &Folder, fault: &str) -> Vec<String> {
    let out = folder.text();
    let own = ["train", "--out", &out, "--threads", "1", "--deadline", "5s", "--inject", fault];
    let several = ["--set", support::SEVERAL_BUCKETS].map(str::to_owned);
    own.map(str::to_owned).into_iter().chain(layout.flags()).chain(several).collect()
}

/// Fails unless the record says why the run ended, as stderr does: with the rank's host and, in two
/// dimensions, its place. In one dimension its number is its place.
#[track_caller]
fn assert_names(folder: &Folder, finished: &Finished, rank: usize, layout: Layout, why: &str) {
    let Layout { data, shard, .. } = layout;
    let place = match [data, shard] {
        [_, 1] | [1, _] => String::new(),
        _ => format!(", data {}, shard {}", rank / shard, rank % shard),
    };
    let record = folder.record();
    let reason = &record["reason"];
    assert_eq!(record["exit_code"], 5, "{reason:#}");
    assert_eq!(reason["rank"], rank, "{reason:#}");
    let name = format!("rank {rank} ({}{place}){why}", reason["host"].as_str().unwrap());
    assert!(reason["text"].as_str().unwrap().contains(&name), "no {name:?} in {reason:#}");
    assert!(finished.stderr.contains(&name), "no {name:?} in {finished:?}");
    let report = support::run(&["report", &folder.text()]).stdout;
    let in_report = format!("rank {rank} ({}", place.trim_start_matches(", "));
    assert!(report.contains(&in_report), "no {in_report:?} in {report}");
}

#[test]
fn a_killed_rank_is_named_with_its_place_by_its_peers() {
    for layout in LAYOUTS {
        let folder = Folder::new();
        let arguments = arguments(layout, &folder, "kill@step=5,rank=3");
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let each = on_each_rank(RANKS, &arguments, &[]);
        let mut codes: Vec<&str> = each.codes.lines().collect();
        codes.sort_unstable();
        assert_eq!(codes, ["137", "5", "5", "5"], "{layout}: {:?}", each.finished);
        assert_names(&folder, &each.finished, 3, layout, "");
        folder.await_end();
    }
}

/// Trains until a fault ends the run, which names the rank with its place.
#[track_caller]
fn assert_named(fault: &str, rank: usize, why: &str) {
    let folder = Folder::new();
    let arguments = arguments(GRID, &folder, &format!("{fault}@step=5,rank={rank}"));
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let ended = finish(mpirun(RANKS, &arguments)).expect(5);
    assert_names(&folder, &ended, rank, GRID, &format!(": {why}"));
    folder.await_end();
}

#[test]
fn a_frozen_rank_is_named_with_its_place() {
    assert_named("freeze", 2, "silent");
}

#[test]
fn a_rank_that_does_not_come_is_named_with_its_place() {
    assert_named("hang", 1, "not arrived");
}

#[test]
fn a_supervisor_names_a_killed_rank_with_its_place() {
    let folder = Folder::new();
    let arguments = arguments(GRID, &folder, "kill@step=5,rank=1");
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let killed = finish(supervise(&["--ranks-per-node", "4"], &arguments)).expect(5);
    killed.expect_stderr(&["rank 1 (data 0, shard 1)", "ended first"]);
    assert_eq!(folder.record()["reason"]["rank"], 1);
    folder.await_end();
}
