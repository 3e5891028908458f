//! Self-description of the command line: version, help, completion scripts and man pages.

use support::{Folder, record, run, text};

const SUBCOMMANDS: [&str; 11] = [
    "train",
    "workloads",
    "plan",
    "devices",
    "report",
    "data",
    "ckpt",
    "export",
    "k8s",
    "completions",
    "man",
];

fn stdout(arguments: &[&str]) -> String {
    run(arguments).expect(0).stdout
}

#[test]
fn the_version_names_commit_and_features() {
    let version = stdout(&["--version"]);
    let details = version
        .trim_end()
        .strip_prefix(concat!("yardstick ", env!("CARGO_PKG_VERSION"), " (commit "))
        .and_then(|rest| rest.strip_suffix(')'));
    let (commit, features) = details.and_then(|rest| rest.split_once(", features: ")).unwrap();
    assert!(!commit.is_empty() && !commit.contains(' '), "{version}");
    assert_eq!(features, if cfg!(feature = "mpi") { "mpi" } else { "none" });
    assert_eq!(stdout(&["-V"]), version);
}

#[test]
fn the_help_names_every_subcommand_and_each_has_its_own() {
    let help = stdout(&["--help"]);
    for name in SUBCOMMANDS {
        assert!(help.lines().any(|line| line.starts_with(&format!("  {name} "))), "{name}: {help}");
        assert!(stdout(&[name, "--help"]).contains(&format!("Usage: yardstick {name}")), "{name}");
    }
}

#[test]
fn durations_are_shown_as_they_are_written() {
    let shown = stdout(&["workloads", "show", "smoke"]);
    for line in ["deadline = \"2m\"", "deadline = \"10m\"", "matmul_probe = \"250ms\""] {
        assert!(shown.lines().any(|found| found == line), "{line}: {shown}");
    }
}

#[test]
fn every_shell_gets_completions_of_every_subcommand() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&["completions", shell]);
        for word in SUBCOMMANDS.iter().chain(&["checkpoint-every"]) {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    let refused = run(&["completions", "tcsh"]).expect(2);
    assert!(refused.stderr.contains("tcsh") && refused.stderr.contains("powershell"));
}

#[test]
fn the_man_page_names_every_subcommand() {
    let page = stdout(&["man"]);
    assert!(page.contains(".TH yardstick 1"), "{page}");
    for name in SUBCOMMANDS {
        assert!(page.contains(&format!("yardstick\\-{name}(1)")), "{name}: {page}");
    }
}

#[test]
fn each_subcommand_gets_a_man_page_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("share/man/man1");
    assert_eq!(stdout(&["man", "--out", &out.to_string_lossy()]), "");
    let page = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    assert!(page("yardstick.1").contains("yardstick\\-train"));
    for name in SUBCOMMANDS {
        assert!(page(&format!("yardstick-{name}.1")).contains(&format!(".TH yardstick-{name} 1")));
    }
    assert!(page("yardstick-ckpt-verify.1").contains("checkpoint"));
}

#[test]
fn a_folder_for_man_pages_that_cannot_be_made_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let out = file.path().to_string_lossy().into_owned();
    let refused = run(&["man", "--out", &out]).expect(2);
    assert!(refused.stderr.contains(&out), "{}", refused.stderr);
}

/// Moves the cursor, changes the clipboard, or turns the direction of writing.
const CONTROLS: &str = "\u{1b}[2J\u{1b}]52;c;eA==\u{7}\u{9b}31m\r\u{202e}evil";

/// A run whose record has control characters in its strings, as whoever can write it may put there.
fn forged_run(folder: &Folder, name: &str) -> String {
    let out = folder.sibling(name);
    let shown = text(&out);
    run(&["train", "--steps", "50", "--set", "model.layers=1", "--out", &shown]).expect(0);
    let mut record = record(&out);
    record.as_object_mut().unwrap().remove("digest");
    record["workload"]["name"] = CONTROLS.into();
    record["environment"]["host"] = CONTROLS.into();
    record["ranks"][0]["host"] = CONTROLS.into();
    let anomaly = serde_json::json!({"step": 3, "rank": 0, "text": CONTROLS});
    record["anomalies"].as_array_mut().unwrap().push(anomaly);
    std::fs::write(out.join("record.json"), record.to_string()).unwrap();
    shown
}

#[test]
fn a_record_cannot_control_the_terminal() {
    let folder = Folder::new();
    let (one, other) = (forged_run(&folder, "one"), forged_run(&folder, "other"));
    for arguments in [
        &["report", &one][..],
        &["report", "--markdown", &one],
        &["report", &one, &other],
        &["compare", &one, &other],
        &["k8s", "collect", &one],
    ] {
        let finished = run(arguments);
        let text = format!("{}{}", finished.stdout, finished.stderr);
        let is_obeyed = |it: char| it.is_control() && it != '\n' || it == '\u{202e}';
        assert!(!text.contains(is_obeyed), "{arguments:?}: {text:?}");
        assert!(text.contains("\\u{1b}[2J"), "{arguments:?}: {text}");
    }
}
