//! `bench`, `baseline` and `compare` as a user runs them, and a slow rank that they find.

use std::path::Path;

use record::{SteadyWatch, read_steps, steps_path};
use serde_json::Value;
use support::{Finished, Folder, finish, launcher, mpirun, run, text, yardstick};

use super::TINY;

const YARDSTICK: &str = env!("CARGO_BIN_EXE_yardstick");

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

/// Runs of two ranks in turn in virtual time, with the slow part of the second side and what it
/// adds; the comparison, and its exit code.
fn in_turn(folder: &Folder, slow: &str, added: &str) -> (i32, Value) {
    let tiny = TINY.join(" ");
    let train = format!("{} -np 2 {YARDSTICK} train --steps 40 {tiny}", launcher::program());
    let base = format!("{train} --inject clock@rank=1,percent=0,seed=1");
    let new = format!("{train} --inject clock@rank=1,seed=2,{slow} {added}");
    let keep = text(&folder.sibling("kept"));
    let how = ["compare", "--json", "--rounds", "3", "--keep", &keep, "--allow-injected"];
    let gates = ["--gate", "tokens_per_second", "--gate", "slowest_rank"];
    let flags = [&how[..], &gates, &["--run", &base, "--"]].concat();
    let mut command = yardstick(&[&flags[..], &[&new]].concat());
    launcher::set_environment(&mut command);
    let compared = finish(command);
    (compared.code, json(&compared))
}

/// The metric of a comparison.
fn metric<'a>(comparison: &'a Value, name: &str) -> &'a Value {
    let metrics = comparison["metrics"].as_array().unwrap();
    metrics.iter().find(|metric| metric["name"] == name).unwrap()
}

#[test]
fn a_slow_rank_is_found_by_runs_in_turn() {
    let (code, comparison) = in_turn(&Folder::new(), "percent=20,part=data", "");
    assert_eq!(code, 10, "{comparison:#}");
    assert_eq!(comparison["method"], "pairs");
    assert_eq!(metric(&comparison, "slowest_rank")["verdict"], "worse", "{comparison:#}");
    let ranks = comparison["attribution"]["ranks"].as_array().unwrap();
    let named: Vec<_> = ranks.iter().map(|rank| (&rank["rank"], &rank["kind"])).collect();
    assert_eq!(named, [(&1.into(), &"data".into())], "{comparison:#}");
}

#[test]
fn runs_in_turn_of_the_same_are_the_same() {
    let added = "--set telemetry.log_every_steps=7";
    let (code, comparison) = in_turn(&Folder::new(), "percent=0", added);
    assert_eq!(code, 0, "{comparison:#}");
    assert_eq!(comparison["attribution"]["ranks"], Value::Array(vec![]));
    let differences = comparison["differences"].as_array().unwrap();
    let names: Vec<_> = differences.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["injected", "run.telemetry.log_every_steps"]);
}

#[test]
fn repeats_of_a_bench_are_runs_with_records_that_a_baseline_keeps() {
    let folder = Folder::new();
    let (out, store) = (folder.text(), text(&folder.sibling("store")));
    let flags = ["bench", "--json", "--repeats", "2", "--measure-steps", "40", "--records", &store];
    let flags = [&flags[..], &TINY, &["--out", &out]].concat();
    let finished = finish(mpirun(2, &flags)).expect(0);
    let bench = json(&finished);
    assert_eq!((&bench["world"], bench["repeats"].as_array().unwrap().len()), (&2.into(), 2));
    let figure = &bench["tokens_per_second"];
    let bounds = ["low", "estimate", "high"].map(|name| figure[name].as_f64().unwrap());
    assert!(bounds.is_sorted() && bounds[0] > 0.0, "{bounds:?}");
    let repeats = bench["repeats"].as_array().unwrap();
    repeats.iter().for_each(expect_that_it_ended_when_enough_was_measured);
    let is_steady = repeats.iter().all(|repeat| repeat["is_steady"] == true);
    assert_eq!(bench["is_steady"], is_steady, "{bench:#}");
    let warnings = bench["warnings"].to_string();
    assert!(!warnings.contains("different losses"), "each repeat computes the same: {warnings}");
    let shown = json(&run(&["baseline", "show", "--json", &store]).expect(0));
    assert_eq!((&shown[0]["records"], &shown[0]["sessions"]), (&2.into(), &1.into()));
    run(&["baseline", "promote", &store, "--newest", "1"]).expect(0);
    let shown = json(&run(&["baseline", "show", "--json", &store]).expect(0));
    assert_eq!((&shown[0]["records"], &shown[0]["promoted"]), (&2.into(), &1.into()));
    // One session a side does not cover the variation between days.
    let repeats = [1, 2].map(|number| text(&folder.path().join(format!("repeat-0{number}"))));
    let noisy = run(&["compare", &repeats[0], &repeats[1]]);
    // Another process may have slowed either down by more than is assumed: better, worse, or noise.
    let assumed = [0, 10, 11];
    assert!(assumed.contains(&noisy.code), "{noisy:?}");
    noisy.expect_stdout(&[": tokens/s ", "hint: `yardstick compare --run`"]);
    run(&["compare", &out, &out]).expect(12).expect_stderr(&["found one on both sides"]);
    let last = text(&folder.path().join("repeat-02"));
    let of_store = run(&["compare", "--json", &store, &text(&folder.path().join("repeat-01"))]);
    assert!(assumed.contains(&of_store.code), "{of_store:?}");
    assert_eq!(json(&of_store)["method"], "assumed");
    run(&["compare", &store, &last])
        .expect(12)
        .expect_stderr(&["expected other records of smoke-", "found none"]);
    run(&["compare", "--allow-no-baseline", &store, &last])
        .expect(0)
        .expect_stdout(&["no baseline: it has no other comparable record of smoke-"]);
    let saved = text(&folder.sibling("saved"));
    let none = ["baseline", "show", "--allow-none", "--only", "other", "--save", &saved, &store];
    run(&none).expect(0).expect_stdout(&["no baseline of other yet"]);
    run(&["compare", "--allow-no-baseline", &saved, &out])
        .expect(0)
        .expect_stdout(&["no baseline"]);
    run(&["baseline", "show", "--save", &saved, &store]).expect(0);
    std::fs::remove_dir_all(&store).unwrap();
    let of_saved = run(&["compare", "--json", &saved, &text(&folder.path().join("repeat-01"))]);
    assert!(assumed.contains(&of_saved.code), "{of_saved:?}");
}

/// Checks a repeat of 40 steady steps: on both ranks it ended one step after rank 0 had measured
/// them, in which rank 0 informed the other rank, or at the bound.
fn expect_that_it_ended_when_enough_was_measured(repeat: &Value) {
    let folder = Path::new(repeat["folder"].as_str().unwrap());
    let samples =
        |rank| read_steps(&steps_path(folder, rank)).unwrap().map(|it| it.unwrap().sample);
    let mut steady = SteadyWatch::new(40, 2);
    let enough = samples(0).position(|sample| {
        steady.observe(&sample);
        steady.is_done()
    });
    let bound = 168;
    let expected = enough.map_or(bound, |index| (index + 2).min(bound));
    assert_eq!([0, 1].map(|rank| samples(rank).count()), [expected; 2], "{repeat:#}");
    let measured = repeat["measured_steps"].as_u64().unwrap();
    assert!(enough.is_none() || repeat["is_steady"] == true, "{repeat:#}");
    assert!(enough.is_none() || measured >= 40, "{repeat:#}");
}

#[test]
fn what_is_no_record_is_named() {
    let folder = Folder::new();
    let run_folder = folder.text();
    let five_steps = [&TINY[..], &["--steps", "5"]].concat();
    folder.train(&[&five_steps[..], &["--inject", "stop@step=2,rank=0"]].concat()).expect(75);
    run(&["compare", &run_folder, &run_folder])
        .expect(12)
        .expect_stderr(&["record.json: expected a complete run, found stopped"]);
    folder.train(&five_steps).expect(0);
    run(&["compare", "/nowhere", &run_folder]).expect(12).expect_stderr(&["/nowhere"]);
    run(&["baseline", "show", "/nowhere"]).expect(2).expect_stderr(&["/nowhere: no baselines"]);
    run(&["baseline", "show", "--allow-none", "--only", "smoke", "/nowhere"])
        .expect(0)
        .expect_stdout(&["/nowhere: no baseline of smoke yet"]);
    run(&["plan", "--expect-id", "0"])
        .expect(2)
        .expect_stderr(&["expected the workload with id 0"]);
    run(&["compare", "--threshold", "much", "a", "b"]).expect(2).expect_stderr(&["as in 3%"]);
    let failing = ["compare", "--run", "false", "--", "true"];
    run(&failing).expect(12).expect_stderr(&["false --out", "exit status: 1"]);
}

#[test]
fn a_bench_has_a_new_folder_and_does_not_repeat_a_complete_one() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path()).unwrap();
    let flags = [&["bench", "--repeats", "2", "--steps", "5"], &TINY[..]].concat();
    let mut command = yardstick(&flags);
    command.current_dir(folder.path());
    finish(command).expect(0);
    let made = std::fs::read_dir(folder.path().join("runs")).unwrap().map(|it| it.unwrap().path());
    let made: Vec<_> = made.collect();
    let [out] = &made[..] else { panic!("one folder: {made:?}") };
    let name = out.file_name().unwrap().to_string_lossy();
    assert!(name.starts_with("bench-smoke-20") && name.contains('T'), "{name}");
    let out_text = text(out);
    let again = [&flags[..], &["--out", &out_text]].concat();
    std::fs::remove_dir_all(out.join("repeat-02")).unwrap(); // as where it was interrupted
    run(&again).expect(0);
    run(&again).expect(2).expect_stderr(&["repeat-02: measured completely before"]);
}

/// Within a second they would have one name.
#[test]
fn benches_that_start_at_once_have_folders_of_their_own() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path()).unwrap();
    let bench = || {
        let once = ["bench", "--repeats", "1", "--steps", "2"];
        let mut command = yardstick(&[&once, &TINY[..]].concat());
        command.current_dir(folder.path());
        std::thread::spawn(move || finish(command))
    };
    let benches = [(); 3].map(|()| bench());
    benches.into_iter().for_each(|bench| drop(bench.join().unwrap().expect(0)));
    assert_eq!(std::fs::read_dir(folder.path().join("runs")).unwrap().count(), 3);
}
