//! Real English text: the binary tokenizes it and trains on it, and the held-out loss falls.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Folder, run, text};

/// The King James Bible of Debian's package bible-kjv as a text file, one verse per line.
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
    let input = bible(folder.path().parent().unwrap());
    let tokens = text(&folder.sibling("bible.bin"));
    let arguments = ["--vocabulary", vocabulary, "--format", format, "--out", &tokens];
    run(&[&["data", "tokenize", &text(&input)], &arguments[..]].concat()).expect(0);
    let inspected = run(&["data", "inspect", &tokens]).expect(0).stdout;
    assert!(inspected.contains(format), "{inspected}");
    let settings = [
        "data.source=files".to_owned(),
        format!("data.files=[\"{tokens}\"]"),
        format!("model.vocabulary={ids}"),
        "schedule.steps=24".to_owned(),
        "schedule.warmup_steps=4".to_owned(),
        "batch.global_sequences=4".to_owned(), // sufficient
        "telemetry.matmul_probe=0s".to_owned(),
    ];
    let mut flags = vec!["--eval-every", "8"];
    flags.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    folder.train(&flags).expect(0);
    let lines = folder.steps(0);
    lines.iter().filter_map(|line| line.0["evaluation_loss"].as_f64()).collect()
}

fn assert_falling(losses: &[f64], start: f64) {
    assert_eq!(losses.len(), 3);
    assert!(losses[0] < start, "{losses:?} must start below that of uniform guesses, {start}");
    assert!(losses.is_sorted_by(|a, b| a > b), "{losses:?} must fall");
}

#[test]
fn held_out_loss_falls_on_bytes() {
    let losses = held_out_losses("bytes", 256, "raw");
    assert_falling(&losses, 256_f64.ln());
    assert!(losses[2] < 3.0, "{losses:?}");
}

#[test]
fn held_out_loss_falls_on_gpt2_tokens() {
    let losses = held_out_losses("gpt2", 50_257, "megatron");
    assert_falling(&losses, 50_257_f64.ln());
    assert!(losses[2] < 8.0, "{losses:?}");
}
