//! Whose mistake it is, the workload file's or the command line's, and on which line.

use crate::support::run;
use crate::write;

#[test]
fn a_wrong_workload_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let smoke = run(&["workloads", "show", "smoke"]).expect(0).stdout;
    let line = |text: &str| 1 + smoke.lines().position(|line| line == text).unwrap();
    let change = |from: &str, to: &str| smoke.replacen(from, to, 1);
    let with = |text: &str| format!("{smoke}{text}\n");
    let end = smoke.lines().count();
    let cases = [
        ("syntax.toml", with("[model"), end + 1, "not valid TOML: unclosed table"),
        ("section.toml", with("[extra]\nkey = 1"), end + 1, "unknown field `extra`"),
        ("key.toml", change("keep = 2", "kept = 2"), line("keep = 2"), "unknown field `kept`"),
        (
            "model.toml",
            change("layers = 2", "layer = 2"),
            line("layers = 2"),
            "unknown field `layer`",
        ),
        ("type.toml", change("steps = 200", "steps = true"), line("steps = 200"), "expected u64"),
        ("value.toml", change("layers = 2", "layers = 0"), line("layers = 2"), "model.layers = 0"),
        (
            "batch.toml",
            change("global_sequences = 16", "global_sequences = 6"),
            line("global_sequences = 16"),
            "batch.global_sequences = 6",
        ),
        ("empty.toml", String::new(), 0, "missing field `model`"),
    ];
    for (name, text, line, says) in cases {
        let path = write(&folder.path().join(name), text.as_bytes());
        let finished = run(&["train", "--workload", &path]).expect(2);
        let place = if line > 0 { format!("{path}, line {line}: ") } else { format!("{path}: ") };
        assert!(finished.stderr.contains(&place), "{name}: no {place:?} in {}", finished.stderr);
        assert!(finished.stderr.contains(says), "{name}: {}", finished.stderr);
    }
}

#[test]
fn a_wrong_flag_is_not_called_a_mistake_of_the_workload_file() {
    let folder = tempfile::tempdir().unwrap();
    let smoke = run(&["workloads", "show", "smoke"]).expect(0).stdout;
    let path = write(&folder.path().join("good.toml"), smoke.as_bytes());
    // The last two make another key of the file impossible.
    let same = ["model.layers=0", "schedule.steps=true", "run.layer=2"];
    for wrong in same.into_iter().chain(["schedule.steps=10", "batch.micro_sequences=3"]) {
        let finished = run(&["train", "--workload", &path, "--set", wrong]).expect(2);
        assert!(!finished.stderr.contains("good.toml"), "{wrong}: {}", finished.stderr);
    }
}

/// Each mistake is told as its maker's, however much is wrong with the other; as one of both where
/// that cannot be told.
#[test]
fn a_workload_file_and_a_flag_that_are_both_wrong_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let smoke = run(&["workloads", "show", "smoke"]).expect(0).stdout;
    let no_layers = smoke.replacen("layers = 2", "layers = 0", 1);
    let no_keep = no_layers.replacen("keep = 2", "keep = 0", 1);
    let no_steps = smoke.replacen("\nsteps = 200", "", 1);
    let neither = no_steps.replacen("layers = 2", "layers = 0", 1);
    let place = |text: &str, key: &str| {
        let line = text.lines().position(|line| line == format!("{key} = 0")).unwrap();
        format!("wrong.toml, line {}", line + 1)
    };
    let told = |text: &str, set: &[&str]| {
        let path = write(&folder.path().join("wrong.toml"), text.as_bytes());
        let flags = set.iter().flat_map(|set| ["--set", set]);
        let arguments: Vec<_> = ["train", "--workload", &path].into_iter().chain(flags).collect();
        run(&arguments).expect(2).stderr
    };
    let says = |stderr: &str, what: &str| assert!(stderr.contains(what), "no {what:?} in {stderr}");
    let (layers, keep) = (place(&no_layers, "layers"), place(&no_keep, "keep"));
    says(&told(&no_layers, &["checkpoint.keep=3"]), &format!("{layers}: model.layers = 0"));
    says(&told(&no_keep, &["model.layers=2"]), &format!("{keep}, with --set: checkpoint.keep = 0"));
    let steps = "schedule.steps=200";
    let layers = place(&neither, "layers");
    says(&told(&neither, &[steps]), &format!("{layers}, with --set: model.layers = 0"));
    says(&told(&no_steps, &[steps, "model.layer=2"]), "wrong.toml with --set: unknown field");
    let no_files = smoke.replacen("\"synthetic\"", "\"files\"", 1);
    says(&told(&no_files, &["checkpoint.keep=3"]), "wrong.toml: data.files");
    let of_both = told(&smoke.replacen("keep = 2", "keep = 0", 1), &["model.width=65"]);
    says(&of_both, ", with --set: model.heads = 4");
    let of_flag = told(&no_layers, &["model.layers=2", "checkpoint.keep=0"]);
    assert!(of_flag.starts_with("error: checkpoint.keep = 0"), "{of_flag}");
}
