//! Real English: tokenized by the binary, trained on, and held-out loss falls.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Folder, run};

/// The King James Bible of Debian's package bible-kjv, one verse a line, as one text file.
fn bible(folder: &Path) -> PathBuf {
    let output = Command::new("bible").args(["-f", "gen1:1-rev22:21"]).output();
    let output = output.expect("Debian's package bible-kjv is installed by scripts/setup.sh test");
    assert!(output.stdout.len() > 4_000_000, "{} bytes of text", output.stdout.len());
    let path = folder.join("bible.txt");
    std::fs::write(&path, output.stdout).unwrap();
    path
}

/// Tokenizes with a vocabulary, trains smoke's model on it, and returns the held-out losses.
fn held_out_losses(vocabulary: &str, ids: usize, format: &str) -> Vec<f64> {
    let folder = Folder::new();
    let root = folder.path().parent().unwrap().to_owned();
    let (text, tokens) = (bible(&root), root.join("bible.bin"));
    let tokens = tokens.to_string_lossy();
    let arguments = ["--vocabulary", vocabulary, "--format", format, "--out", &tokens];
    run(&[&["data", "tokenize", &text.to_string_lossy()], &arguments[..]].concat()).expect(0);
    let inspected = run(&["data", "inspect", &tokens]).expect(0).stdout;
    assert!(inspected.contains(format), "{inspected}");
    let settings = [
        "data.source=files".to_owned(),
        format!("data.files=[\"{tokens}\"]"),
        format!("model.vocabulary={ids}"),
        "schedule.steps=60".to_owned(),
        "schedule.warmup_steps=10".to_owned(),
        "batch.global_sequences=8".to_owned(), // as many as show it
    ];
    let out = folder.text();
    let mut arguments = vec!["train", "--eval-every", "20", "--out", &out];
    arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    run(&arguments).expect(0);
    let lines = folder.steps(0);
    lines.iter().filter_map(|line| line.0["evaluation_loss"].as_f64()).collect()
}

fn assert_falling(losses: &[f64], start: f64) {
    assert_eq!(losses.len(), 3);
    assert!(losses[0] < start, "{losses:?} starts below the uniform guess {start}");
    assert!(losses.is_sorted_by(|a, b| a > b), "{losses:?} falls");
}

#[test]
fn held_out_loss_falls_on_bytes() {
    let losses = held_out_losses("bytes", 256, "raw");
    assert_falling(&losses, 256_f64.ln());
    assert!(losses[2] < 3.0, "{losses:?}");
}

#[test]
fn held_out_loss_falls_on_the_gpt2_vocabulary() {
    let losses = held_out_losses("gpt2", 50_257, "megatron");
    assert_falling(&losses, 50_257_f64.ln());
    assert!(losses[2] < 8.0, "{losses:?}");
}
