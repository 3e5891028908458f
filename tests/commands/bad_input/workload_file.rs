//! Errors of a configuration name their source: the workload file with the line, or the command
//! line.

use super::write;
use support::run;

#[test]
fn an_error_in_a_workload_file_names_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let smoke = run(&["workloads", "show", "smoke"]).expect(0).stdout;
    let line = |text: &str| 1 + smoke.lines().position(|line| line == text).unwrap();
    let change = |from: &str, to: &str| smoke.replacen(from, to, 1);
    let with = |text: &str| format!("{smoke}{text}\n");
    let end = smoke.lines().count();
    let cases = [
        ("syntax.toml", with("[model"), end + 1, "not valid TOML: unclosed table"),
        ("section.toml", with("[extra]\nkey = 1"), end + 1, "unknown key `extra`"),
        ("key.toml", change("keep = 2", "kept = 2"), line("keep = 2"), "unknown key `kept`"),
        (
            "model.toml",
            change("layers = 2", "layer = 2"),
            line("layers = 2"),
            "unknown key `layer`",
        ),
        (
            "type.toml",
            change("steps = 200", "steps = true"),
            line("steps = 200"),
            "expected a whole number from 0 on, found `true` in `schedule.steps`",
        ),
        ("value.toml", change("layers = 2", "layers = 0"), line("layers = 2"), "model.layers = 0"),
        (
            "batch.toml",
            change("global_sequences = 16", "global_sequences = 6"),
            line("global_sequences = 16"),
            "batch.global_sequences = 6",
        ),
        ("empty.toml", String::new(), 0, "missing key `model`"),
    ];
    for (name, text, line, message) in cases {
        let path = write(&folder.path().join(name), text.as_bytes());
        let location =
            if line > 0 { format!("{path}, line {line}: ") } else { format!("{path}: ") };
        let finished = run(&["train", "--workload", &path]).expect(2);
        finished.expect_stderr(&[&location, message]);
    }
}

#[test]
fn an_error_in_a_flag_does_not_name_the_workload_file() {
    let folder = tempfile::tempdir().unwrap();
    let smoke = run(&["workloads", "show", "smoke"]).expect(0).stdout;
    let path = write(&folder.path().join("good.toml"), smoke.as_bytes());
    // The last two make the value of another key of the file impossible.
    let same = ["model.layers=0", "schedule.steps=true", "run.layer=2"];
    for bad in same.into_iter().chain(["schedule.steps=10", "batch.micro_sequences=3"]) {
        let finished = run(&["train", "--workload", &path, "--set", bad]).expect(2);
        assert!(!finished.stderr.contains("good.toml"), "{bad}: {}", finished.stderr);
    }
}

/// An error names its source also when the other source has errors too, and both if that cannot be
/// decided.
#[test]
fn errors_in_both_the_workload_file_and_a_flag_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    let smoke = run(&["workloads", "show", "smoke"]).expect(0).stdout;
    let no_layers = smoke.replacen("layers = 2", "layers = 0", 1);
    let no_keep = no_layers.replacen("keep = 2", "keep = 0", 1);
    let no_steps = smoke.replacen("\nsteps = 200", "", 1);
    let neither = no_steps.replacen("layers = 2", "layers = 0", 1);
    let location = |text: &str, key: &str| {
        let line = text.lines().position(|line| line == format!("{key} = 0")).unwrap();
        format!("bad.toml, line {}", line + 1)
    };
    let error = |text: &str, set: &[&str]| {
        let path = write(&folder.path().join("bad.toml"), text.as_bytes());
        let flags = set.iter().flat_map(|set| ["--set", set]);
        let arguments: Vec<_> = ["train", "--workload", &path].into_iter().chain(flags).collect();
        run(&arguments).expect(2).stderr
    };
    let contains =
        |stderr: &str, part: &str| assert!(stderr.contains(part), "no {part:?} in {stderr}");
    let layers = location(&no_layers, "layers");
    let keep = location(&no_keep, "keep");
    contains(&error(&no_layers, &["checkpoint.keep=3"]), &format!("{layers}: model.layers = 0"));
    let both = format!("{keep}, with --set: checkpoint.keep = 0");
    contains(&error(&no_keep, &["model.layers=2"]), &both);
    let steps = "schedule.steps=200";
    let layers = location(&neither, "layers");
    contains(&error(&neither, &[steps]), &format!("{layers}, with --set: model.layers = 0"));
    contains(&error(&no_steps, &[steps, "model.layer=2"]), "bad.toml with --set: unknown key");
    let no_files = smoke.replacen("\"synthetic\"", "\"files\"", 1);
    contains(&error(&no_files, &["checkpoint.keep=3"]), "bad.toml: data.files");
    let of_both = error(&smoke.replacen("keep = 2", "keep = 0", 1), &["model.width=65"]);
    contains(&of_both, ", with --set: model.heads = 4");
    let of_flag = error(&no_layers, &["model.layers=2", "checkpoint.keep=0"]);
    assert!(of_flag.starts_with("error: checkpoint.keep = 0"), "{of_flag}");
}
