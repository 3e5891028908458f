//! Trace of steps, in the format of Chrome's viewer.

use std::collections::BTreeMap;

use serde_json::Value;
use support::Folder;

fn number(event: &Value, key: &str) -> f64 {
    event[key].as_f64().unwrap_or_else(|| panic!("no {key} in {event:#}"))
}

/// The events of a kind, by rank.
fn by_rank<'a>(events: &'a [Value], category: &str, kind: &str) -> BTreeMap<u64, Vec<&'a Value>> {
    let mut found: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for event in events.iter().filter(|it| it["cat"] == category && it["ph"] == kind) {
        found.entry(event["pid"].as_u64().unwrap()).or_default().push(event);
    }
    found
}

#[test]
fn all_ranks_are_on_one_timeline() {
    let folder = Folder::new();
    let set = ["--set", "collectives.bucket_bytes=100000", "--set", "parallel.sharded=optimizer"];
    let flags = [&["--steps", "8", "--trace-steps", "4..6"], &set[..]].concat();
    folder.train_on(2, &flags).expect(0);
    let path = folder.path().join("trace/steps-4-6.json");
    let trace: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let steps = by_rank(events, "step", "X");
    assert_eq!(steps.len(), 2, "both ranks");
    for steps in steps.values() {
        let names: Vec<_> = steps.iter().map(|step| step["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["step 4", "step 5", "step 6"]);
    }
    // No rank ends a step before the other has begun it, however busy the machine is: they vote.
    let end = |step: &Value| number(step, "ts") + number(step, "dur");
    for (of_0, of_1) in steps[&0].iter().zip(&steps[&1]) {
        let overlap = number(of_0, "ts") < end(of_1) && number(of_1, "ts") < end(of_0);
        assert!(overlap, "{of_0:#} {of_1:#}");
    }
    for (rank, phases) in by_rank(events, "phase", "X") {
        let spent_us: f64 = phases.iter().map(|phase| number(phase, "dur")).sum();
        let total_us: f64 = steps[&rank].iter().map(|step| number(step, "dur")).sum();
        assert!((spent_us / total_us - 1.0).abs() < 0.01, "{spent_us} of {total_us}");
        for name in ["data", "forward", "backward", "optimizer", "comm_exposed"] {
            assert!(phases.iter().any(|phase| phase["name"] == name), "no {name}");
        }
    }
    let starts = by_rank(events, "communication", "b");
    let ends = by_rank(events, "communication", "e");
    for (rank, starts) in starts {
        assert_eq!(starts.len(), ends[&rank].len());
        for kind in ["reduction of bucket 1", "all-gather of bucket 1"] {
            assert!(starts.iter().any(|event| event["name"] == kind), "no {kind}");
        }
        for start in starts {
            let is_its_end = |end: &&&Value| end["id"] == start["id"];
            let end = ends[&rank].iter().find(is_its_end).unwrap();
            assert!(number(end, "ts") >= number(start, "ts"));
        }
    }
}

#[test]
fn steps_that_cannot_be_traced_are_refused() {
    let folder = Folder::new();
    for steps in ["6..4", "0..3", "x", "180..201"] {
        let finished = folder.train(&["--trace-steps", steps]);
        assert!(finished.stderr.contains("--trace-steps"), "{steps}: {finished:?}");
        finished.expect(2);
    }
}
