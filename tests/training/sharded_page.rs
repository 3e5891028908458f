//! The commands of `docs/sharded-training.md`, as a reader runs them: they succeed, and print
//! lines that begin as those of the page. Figures are of the page's machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use support::{Folder, finish, launch, yardstick};

const PAGE: &str = include_str!("../../docs/sharded-training.md");

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

/// Returns the first word of a line, and those after it up to the first figure or name.
fn heading(line: &str) -> Vec<&str> {
    let mut words = line.split_whitespace().filter(|word| *word != "|");
    let first = words.next();
    let is_text = |word: &&str| word.chars().all(|letter| letter.is_ascii_lowercase());
    first.into_iter().chain(words.take_while(is_text)).collect()
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
    for (index, Shown { command, output }) in all.iter().enumerate() {
        let log = fs::read_to_string(work.path().join(format!("{index}.log"))).unwrap();
        // Which steps are printed depends on the moment of the kill.
        let texts = output.iter().filter(|line| !line.trim_start().starts_with(char::is_numeric));
        for line in texts {
            let is_printed = log.lines().any(|found| heading(found).starts_with(&heading(line)));
            assert!(is_printed, "{command}\ndoes not print\n{line}\nbut\n{log}");
        }
    }
}
