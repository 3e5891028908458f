//! The commands of `docs/sharded-training.md`, as a reader runs them, and what they print.

use std::fs;
use std::iter;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use support::{Folder, finish, launch, yardstick};

const PAGE: &str = include_str!("../../docs/sharded-training.md");

/// Host of the page's output.
const HOST_OF_PAGE: &str = "vm";

/// As of the golden losses of the workload.
const LOSS_TOLERANCE_NATS: f64 = 0.002;

/// Command of the page, and lines of its output.
struct Shown {
    command: String,
    output: Vec<&'static str>,
}

fn shown() -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let mut is_console = false;
    for line in PAGE.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ") {
            all.push(Shown { command: command.to_owned(), output: Vec::new() });
        } else if is_console {
            let Shown { command, output } = all.last_mut().unwrap();
            match command.strip_suffix('\\') {
                Some(begin) => *command = format!("{begin}{}", line.trim_start()),
                None => output.push(line),
            }
        }
    }
    all
}

/// Returns a line without figures that vary, the bars of shares, and the widths of columns.
fn shape(line: &str) -> String {
    let next = line.split_whitespace().skip(1).map(Some).chain(iter::once(None));
    let varies = |(word, next): &(&str, Option<&str>)| {
        let number = word.trim_end_matches([';', ',', ')']);
        let is_number = number.starts_with(|first: char| first.is_ascii_digit());
        let units = ["kB", "MB", "GB", "kB/s", "MB/s", "GB/s", "MiB", "GiB", "ms"];
        let has_unit = next.is_some_and(|next| units.contains(&next));
        let is_unit = units.contains(word);
        let is_bar = word.chars().all(|character| "#.-|".contains(character));
        is_unit || is_bar || is_number && (has_unit || number.contains(['.', '%']))
    };
    let words = line.split_whitespace().zip(next).filter(|pair| !varies(pair));
    words.map(|(word, _)| word).collect::<Vec<_>>().join(" ")
}

/// Returns the step and the loss of a line of training; its other figures vary.
fn loss(line: &str) -> Option<(&str, f64)> {
    let mut words = line.split_whitespace();
    let step = words.next().filter(|word| word.contains('/'))?;
    Some((step, words.next()?.parse().ok()?))
}

/// Returns whether output has a line of the page, which may be cut off by dots.
fn has(output: &str, line: &str) -> bool {
    let is_it = |found: &str| match (loss(line), loss(found)) {
        // Other processors round otherwise.
        (Some(expected), Some(found)) => {
            expected.0 == found.0 && (expected.1 - found.1).abs() < LOSS_TOLERANCE_NATS
        }
        _ => shape(found).starts_with(&shape(line)),
    };
    output.lines().any(is_it)
}

/// Programs of the page, as this test has them.
fn programs(folder: &Folder) {
    fs::create_dir(folder.path()).unwrap();
    let yardstick = yardstick(&[]).get_program().to_str().unwrap().to_owned();
    let mpirun = launch(1, "").get_program().to_str().unwrap().to_owned();
    let programs = [("yardstick", yardstick), ("mpirun", mpirun)];
    for (name, program) in programs {
        let path = folder.path().join(name);
        let found = finish(shell(&format!("command -v {program}"))).expect(0).stdout;
        fs::write(&path, format!("#!/bin/sh\nexec {} \"$@\"\n", found.trim())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", script]);
    command
}

#[test]
fn its_commands_print_what_it_shows() {
    let [bin, work] = [(); 2].map(|()| Folder::new());
    programs(&bin);
    fs::create_dir(work.path()).unwrap();
    let all = shown();
    assert!(all.len() > 8, "the page has commands");
    // One shell, as the page sets a variable.
    let save = |(index, shown): (usize, &Shown)| {
        format!("{{ {}\n}} >{index}.log 2>&1 || {{ cat {index}.log; exit 1; }}\n", shown.command)
    };
    let script: String = all.iter().enumerate().map(save).collect();
    let path = format!("{}:{}", bin.text(), std::env::var("PATH").unwrap());
    let mut reader = shell(&script);
    reader.envs(launch(1, "").get_envs().filter_map(|(name, value)| Some((name, value?))));
    reader.env("PATH", path).current_dir(work.path());
    finish(reader).expect(0);
    let host = finish(Command::new("hostname")).expect(0).stdout;
    for (index, Shown { command, output }) in all.iter().enumerate() {
        let log = fs::read_to_string(work.path().join(format!("{index}.log"))).unwrap();
        let log = log.replace(host.trim(), HOST_OF_PAGE);
        for line in output {
            assert!(has(&log, line), "{command}\ndoes not print\n{line}\nbut\n{log}");
        }
    }
}
