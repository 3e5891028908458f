//! Lost ranks of two dimensions: named with their places, and no process remains.

use std::fs::read_to_string;
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::{Finished, Folder, finish, on_each_rank, supervise};

/// Four ranks in two shard groups, with several buckets and sharded weights, so that operations of
/// all groups are in flight.
const TWO_BY_TWO: [&str; 11] = [
    "--threads",
    "1",
    "--deadline",
    "4s",
    "--set",
    "parallel.data=2",
    "--set",
    "parallel.sharded=weights",
    "--set",
    support::SEVERAL_BUCKETS,
    "--inject",
];

fn arguments<'a>(out: &'a str, fault: &'a str) -> Vec<&'a str> {
    [&["train", "--out", out, "--set", "parallel.shard=2"], &TWO_BY_TWO[..], &[fault]].concat()
}

/// Fails unless the record says why the run ended, as stderr does.
#[track_caller]
fn assert_names(folder: &Folder, finished: &Finished, rank: usize, name: &str) {
    let record = folder.record();
    let reason = &record["reason"];
    assert_eq!(record["exit_code"], 5, "{reason:#}");
    assert_eq!(reason["rank"], rank, "{reason:#}");
    assert!(reason["text"].as_str().unwrap().contains(name), "{reason:#}");
    assert!(finished.stderr.contains(name), "no {name:?} in {finished:?}");
    let report = support::run(&["report", &folder.text()]).stdout;
    assert!(report.contains(&format!("rank {rank} (data")), "{report}");
}

/// Fails if a process of a run remains. A launcher may end shortly before a process that it killed.
#[track_caller]
fn assert_all_gone(folder: &Folder) {
    let end = Instant::now() + Duration::from_secs(20);
    for rank in folder.record()["ranks"].as_array().unwrap() {
        let status = format!("/proc/{}/status", rank["pid"]);
        let is_running = || read_to_string(&status).is_ok_and(|text| text.contains("VmRSS:"));
        while is_running() {
            assert!(Instant::now() < end, "process {} remains", rank["pid"]);
            sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_killed_rank_is_named_with_its_place_by_its_peers() {
    let folder = Folder::new();
    let start = Instant::now();
    let out = folder.text();
    let each = on_each_rank(4, &arguments(&out, "kill@step=5,rank=3"), &[]);
    assert_eq!(each.codes, "137\n5\n5\n5\n", "{:?}", each.finished);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert_names(&folder, &each.finished, 3, "data 1, shard 1");
    assert_all_gone(&folder);
}

#[test]
fn a_frozen_rank_is_named_with_its_place() {
    let folder = Folder::new();
    let out = folder.text();
    let frozen = finish(support::mpirun(4, &arguments(&out, "freeze@step=5,rank=2")));
    assert_eq!(frozen.code, 5, "{frozen:?}");
    assert_names(&folder, &frozen, 2, "data 1, shard 0): silent");
    assert_all_gone(&folder);
}

#[test]
fn a_rank_that_does_not_come_is_named_with_its_place() {
    let folder = Folder::new();
    let out = folder.text();
    let hung = finish(support::mpirun(4, &arguments(&out, "hang@step=5,rank=1")));
    assert_eq!(hung.code, 5, "{hung:?}");
    assert_names(&folder, &hung, 1, "data 0, shard 1): not arrived");
    assert_all_gone(&folder);
}

#[test]
fn a_supervisor_names_a_killed_rank_with_its_place() {
    let folder = Folder::new();
    let out = folder.text();
    let flags = ["--ranks-per-node", "4"];
    let killed = finish(supervise(&flags, &arguments(&out, "kill@step=5,rank=1"))).expect(5);
    killed.expect_stderr(&["rank 1 (data 0, shard 1)", "ended first"]);
    assert_eq!(folder.record()["reason"]["rank"], 1);
    assert_all_gone(&folder);
}
