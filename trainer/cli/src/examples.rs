//! Examples of use at the end of the help of each command.

use clap::Command;

/// Examples by the words of the command; empty words stand for the program.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "yardstick train --workload gpt2-124m --out runs/monday",
            "yardstick report runs/monday",
            "yardstick compare runs/monday runs/tuesday",
        ],
    ),
    (
        "train",
        &[
            "yardstick train --workload gpt2-124m --steps 200 --checkpoint-every 50steps",
            "mpirun -np 8 yardstick train --device cuda --set batch.micro_sequences=4 --out runs/b",
        ],
    ),
    (
        "launch",
        &[
            "yardstick launch --ranks-per-node 2 -- train --out runs/a",
            "yardstick launch --hostfile hosts --nodes 8 --restarts 3 -- train --out /shared/a",
        ],
    ),
    ("worker", &["yardstick worker --port 2222 --grace 90s"]),
    ("workloads", &["yardstick workloads", "yardstick workloads --json"]),
    ("workloads show", &["yardstick workloads show gpt2-124m > mine.toml"]),
    (
        "plan",
        &["yardstick plan --workload gpt2-124m --device cuda --device-memory 80GiB --ranks 8"],
    ),
    ("devices", &["yardstick devices --json"]),
    (
        "doctor",
        &[
            "yardstick doctor --workload gpt2-124m --out runs/a",
            "yardstick launch --hostfile hosts -- doctor --device cuda --report doctor.txt",
        ],
    ),
    (
        "report",
        &[
            "yardstick report runs/a",
            "yardstick report --html report.html runs/a runs/b",
            "yardstick report --gap runs/profiled",
        ],
    ),
    (
        "compare",
        &[
            "yardstick compare runs/monday runs/tuesday",
            "yardstick compare --gate step_ms=5% s3://results/baselines runs/tonight",
            "yardstick compare published:h100/llama3.1-8b/bf16 runs/a",
        ],
    ),
    ("verify", &["yardstick verify verdict-of-tuesday"]),
    ("baseline", &["yardstick baseline show s3://results/baselines"]),
    ("baseline add", &["yardstick baseline add s3://results/baselines runs/monday runs/tuesday"]),
    ("baseline show", &["yardstick baseline show --only gpt2-124m s3://results/baselines"]),
    ("baseline promote", &["yardstick baseline promote --newest 5 s3://results/baselines"]),
    ("bench", &["mpirun -np 8 yardstick bench --repeats 5 --workload gpt2-124m --out runs/bench"]),
    (
        "comm",
        &[
            "mpirun -np 8 yardstick comm --operation all-reduce --max-bytes 256M",
            "yardstick launch --hostfile hosts -- comm --device cuda --pairs",
        ],
    ),
    ("fingerprint", &["yardstick fingerprint check runs/a"]),
    ("fingerprint make", &["yardstick fingerprint make runs/a runs/b > golden.toml"]),
    ("fingerprint check", &["yardstick fingerprint check --golden golden.toml runs/c"]),
    ("data", &["yardstick data inspect book.bin"]),
    (
        "data tokenize",
        &[
            "yardstick data tokenize --out book.bin book.txt",
            "yardstick data tokenize --jsonl text --out web.bin a.jsonl b.jsonl",
        ],
    ),
    ("data inspect", &["yardstick data inspect --token-bytes 4 s3://bucket/text.bin"]),
    ("data bench", &["yardstick data bench --workload mine.toml --json"]),
    ("ckpt", &["yardstick ckpt ls runs/a"]),
    ("ckpt ls", &["yardstick ckpt ls --tier object runs/a"]),
    ("ckpt show", &["yardstick ckpt show runs/a s000000050-a0001-9f2c61ab"]),
    ("ckpt verify", &["yardstick ckpt verify runs/a"]),
    ("ckpt pin", &["yardstick ckpt pin runs/a s000000050-a0001-9f2c61ab"]),
    ("ckpt unpin", &["yardstick ckpt unpin runs/a s000000050-a0001-9f2c61ab"]),
    ("ckpt promote", &["yardstick ckpt promote --to object runs/a s000000050-a0001-9f2c61ab"]),
    ("ckpt gc", &["yardstick ckpt gc --dry-run runs/a"]),
    ("ckpt plan", &["yardstick ckpt plan --ranks 16 --ranks-here 8 runs/a"]),
    ("ckpt bench", &["yardstick ckpt bench --path /nvme --path s3://bucket/prefix --bytes 4GiB"]),
    ("export", &["yardstick export --out gpt2-hf runs/a"]),
    ("k8s", &["yardstick k8s render smoke-cpu.toml > job.yaml", "yardstick k8s collect /results"]),
    ("k8s render", &["yardstick k8s render --format argo nightly.toml --out nightly.yaml"]),
    (
        "k8s collect",
        &["yardstick k8s collect --benchmark scaling.toml --html scaling.html /results"],
    ),
    ("completions", &["yardstick completions zsh > _yardstick"]),
    ("man", &["yardstick man | man -l -", "yardstick man --out ~/.local/share/man/man1"]),
];

/// Adds examples to the help of each command.
pub(super) fn added(command: Command) -> Command {
    added_to("", command)
}

fn added_to(path: &str, command: Command) -> Command {
    let command = command.mut_subcommands(|command| {
        let path = format!("{path} {}", command.get_name());
        added_to(path.trim_start(), command)
    });
    let Some((_, examples)) = EXAMPLES.iter().find(|(of, _)| *of == path) else { return command };
    let text = format!("Examples:\n  {}", examples.join("\n  "));
    let command = match command.get_after_long_help() {
        Some(before) => {
            let long = format!("{before}\n\n{text}");
            command.after_long_help(long)
        }
        None => command,
    };
    command.after_help(text)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::Arguments;

    /// Returns the paths of all visible commands, and their help texts.
    fn helps(path: &str, command: &mut Command) -> Vec<(String, String)> {
        let mut found = vec![(path.to_owned(), command.render_long_help().to_string())];
        for command in command.get_subcommands_mut() {
            let name = command.get_name().to_owned();
            if name != "help" && !command.is_hide_set() {
                found.extend(helps(format!("{path} {name}").trim_start(), command));
            }
        }
        found
    }

    #[track_caller]
    fn parses(words: &[&str]) {
        let parsed = Arguments::try_parse_from(words);
        assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err());
    }

    #[test]
    fn every_help_ends_with_examples_of_which_each_can_be_run() {
        let helps = helps("", &mut added(Arguments::command()));
        for (path, help) in &helps {
            let (_, examples) = help.split_once("\nExamples:\n").unwrap_or_default();
            let examples: Vec<_> = examples.lines().collect();
            assert!((1..=3).contains(&examples.len()), "{path}: {help}");
            let command = format!("yardstick {path}");
            assert!(examples.iter().any(|line| line.contains(command.trim_end())), "{path}");
            for line in examples {
                assert!(line.len() <= 100, "{line}");
                let start = line.find("yardstick").unwrap_or_else(|| panic!("{line}"));
                let words: Vec<_> = line[start..].split_whitespace().collect();
                let end = words.iter().position(|word| [">", "|"].contains(word));
                let words = &words[..end.unwrap_or(words.len())];
                parses(words);
                if let Some(at) = words.iter().position(|word| *word == "--") {
                    parses(&[&["yardstick"], &words[at + 1..]].concat());
                }
            }
        }
        assert_eq!(helps.len(), EXAMPLES.len(), "an example of no command");
    }
}
