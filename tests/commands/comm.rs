//! `yardstick comm` as a user runs it.

use serde_json::Value;
use support::{Finished, finish, mpirun, run};

fn comm(ranks: usize, flags: &[&str]) -> Finished {
    finish(mpirun(ranks, &[&["comm"], flags].concat()))
}

fn json(ranks: usize, flags: &[&str]) -> Value {
    let finished = comm(ranks, &[flags, &["--json"]].concat());
    assert_eq!(finished.code, 0, "{finished:?}");
    serde_json::from_str(&finished.stdout).unwrap()
}

#[test]
fn every_operation_is_measured_and_verified() {
    let report = json(3, &["--max-bytes", "64K", "--factor", "8"]);
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["operation"].as_str().unwrap()).collect();
    let operations = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"];
    assert_eq!(names, operations.map(|name| [name; 3]).concat());
    for row in rows {
        // 1 KiB, 8 KiB and 64 KiB, rounded up to a whole number of elements for each rank.
        assert_eq!(row["elements"].as_u64().unwrap() % 3, 0, "{row:#}");
        for way in ["in_place", "out_of_place"] {
            let measured = &row[way];
            assert_eq!(measured["wrong"], 0, "{row:#}");
            let [time_us, algbw, busbw] =
                ["time_us", "algbw_bytes_per_second", "busbw_bytes_per_second"]
                    .map(|name| measured[name].as_f64().unwrap());
            let expected = row["bytes"].as_f64().unwrap() / (time_us / 1e6);
            assert!((algbw / expected - 1.0).abs() < 1e-9, "{row:#}");
            let factor = if row["operation"] == "all_reduce" { 4.0 / 3.0 } else { 2.0 / 3.0 };
            assert!((busbw / algbw - factor).abs() < 1e-9, "{row:#}");
        }
    }
}

/// Scripts around nccl-tests search for its last lines.
#[test]
fn the_last_lines_are_those_of_nccl_tests() {
    let flags = ["--max-bytes", "4K", "--operation", "all-reduce"];
    let stdout = comm(2, &flags).expect(0).stdout;
    let of = |start: &str| stdout.lines().find_map(|line| line.strip_prefix(start)).unwrap();
    assert_eq!(of("# Out of bounds values : "), "0 OK", "{stdout}");
    let mean: f64 = of("# Avg bus bandwidth    : ").parse().unwrap();
    let is_row = |line: &&str| line.trim_start().starts_with("all_reduce");
    let cells = stdout.lines().filter(is_row).flat_map(|row| {
        let cells: Vec<&str> = row.split_whitespace().collect();
        [6, 10].map(|column| cells[column].parse::<f64>().unwrap())
    });
    let busbw: Vec<f64> = cells.collect();
    let expected = busbw.iter().sum::<f64>() / busbw.len() as f64;
    assert!((mean - expected).abs() <= 0.005, "{mean} {expected}: {stdout}");
}

#[test]
fn every_pair_and_every_cut_is_measured() {
    let report = json(3, &["--pairs", "--bisection", "--message-bytes", "64K"]);
    let ends = |links: &Value| -> Vec<[u64; 2]> {
        let number = |link: &Value, end: &str| link[end].as_u64().unwrap();
        let links = links.as_array().unwrap().iter();
        links.map(|link| [number(link, "from"), number(link, "to")]).collect()
    };
    let pairs = ends(&report["pairs"]["links"]);
    assert_eq!(pairs, [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]);
    let cuts = report["cuts"].as_array().unwrap();
    let cuts: Vec<_> = cuts.iter().map(|cut| ends(&cut["links"])).collect();
    assert_eq!(cuts, [vec![[1, 0], [0, 1]], vec![[2, 0], [0, 2]]]);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let alone = run(&["comm"]);
    assert_eq!(alone.code, 2, "{alone:?}");
    assert!(alone.stderr.contains("expected several ranks, found one"), "{alone:?}");
    let sizes = run(&["comm", "--min-bytes", "2M", "--max-bytes", "1M"]);
    assert_eq!(sizes.code, 2, "{sizes:?}");
    let text = "--min-bytes 2097152: expected at most --max-bytes 1048576";
    assert!(sizes.stderr.contains(text), "{sizes:?}");
    let small = run(&["comm", "--min-bytes", "2"]);
    assert_eq!(small.code, 2, "{small:?}");
}
