//! Report of `make style`: the longest files and functions, the folders with most files, packed
//! lets, and parameters that are tuples. Hints where to look, not limits: nothing here fails.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::files::{self, File};
use crate::functions;
use crate::tuples::{self, Tuple};

/// Entries of each list that are printed.
const SHOWN: usize = 12;

/// List of one kind, largest first.
#[derive(Debug)]
struct List {
    title: &'static str,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Size by which the list is sorted.
    size: usize,
    text: String,
}

impl List {
    fn new(title: &'static str, mut entries: Vec<Entry>) -> Self {
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.size)); // stable: then by path
        Self { title, entries }
    }

    /// The size that a share of the entries does not exceed.
    fn quantile(&self, share: f64) -> usize {
        let last = self.entries.len().saturating_sub(1);
        let index = ((1.0 - share) * last as f64).round() as usize;
        self.entries.get(index).map_or(0, |entry| entry.size)
    }

    /// Title, count, spread, and the first entries.
    fn render(&self) -> String {
        let mut text = format!(
            "== {}: {} (median {}, 90 % at most {})\n",
            self.title,
            self.entries.len(),
            self.quantile(0.5),
            self.quantile(0.9),
        );
        for entry in self.entries.iter().take(SHOWN) {
            writeln!(text, "{}", entry.text).expect("a string takes any text");
        }
        text
    }
}

/// The whole report.
fn report(files: &[File]) -> String {
    let source: Vec<&File> = files.iter().filter(|file| file.is_source()).collect();
    let lists = [
        List::new("files, lines", file_lengths(&source)),
        List::new("functions, lines", function_lengths(&source)),
        List::new("folders, source files", folder_sizes(&source)),
        List::new("packed lets, variables", of_tuples(&source, |found| found.packed_lets)),
        List::new("tuple parameters, elements", of_tuples(&source, |found| found.parameters)),
    ];
    lists.map(|list| list.render()).join("\n")
}

fn file_lengths(source: &[&File]) -> Vec<Entry> {
    let entry = |file: &&File| {
        let lines = file.text.lines().count();
        Entry { size: lines, text: file.at(1, format!("{lines} lines")) }
    };
    source.iter().map(entry).collect()
}

fn function_lengths(source: &[&File]) -> Vec<Entry> {
    let mut entries = Vec::new();
    for file in source {
        for function in functions::of(file).unwrap_or_default() {
            let text = format!("{}, {} lines", function.name, function.lines);
            entries.push(Entry { size: function.lines, text: file.at(function.line, text) });
        }
    }
    entries
}

fn folder_sizes(source: &[&File]) -> Vec<Entry> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for file in source {
        let folder = file.path.rsplit_once('/').map_or(".", |(folder, _)| folder);
        *folders.entry(folder).or_default() += 1;
    }
    let entry = |(folder, size)| Entry { size, text: format!("{folder}/: {size} files") };
    folders.into_iter().map(entry).collect()
}

fn of_tuples(source: &[&File], kind: fn(tuples::Tuples) -> Vec<Tuple>) -> Vec<Entry> {
    let mut entries = Vec::new();
    for file in source {
        for tuple in kind(tuples::of(file)) {
            entries.push(Entry { size: tuple.elements, text: file.at(tuple.line, tuple.text) });
        }
    }
    entries
}

/// `make style` runs this test and shows what it prints.
#[test]
fn print() {
    let report = report(&files::of_project());
    assert_eq!(report.matches("== ").count(), 5, "{report}");
    print!("{report}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted_and_sorted() {
        let code =
            "//! a\nfn short() {}\nfn long((a, b): (u8, u8)) {\n    let (c, d) = (a, b);\n}\n";
        let files = [
            File::sample("a/short.rs", "//! a\n"),
            File::sample("a/long.rs", code),
            File::sample("b.sh", "# a\n"),
            File::sample("b.md", "not source\n"),
        ];
        let expected = "\
== files, lines: 3 (median 1, 90 % at most 5)
a/long.rs:1: 5 lines
a/short.rs:1: 1 lines
b.sh:1: 1 lines

== functions, lines: 2 (median 1, 90 % at most 3)
a/long.rs:3: long, 3 lines
a/long.rs:2: short, 1 lines

== folders, source files: 2 (median 1, 90 % at most 2)
a/: 2 files
./: 1 files

== packed lets, variables: 1 (median 2, 90 % at most 2)
a/long.rs:4: let (c, d) = (a, b);

== tuple parameters, elements: 1 (median 2, 90 % at most 2)
a/long.rs:3: (a, b): (u8, u8)
";
        assert_eq!(report(&files), expected);
    }

    #[test]
    fn a_long_list_is_cut() {
        let entry = |size| Entry { size, text: format!("{size}") };
        let list = List::new("files, lines", (1..=101).map(entry).collect());
        let text = list.render();
        assert!(text.starts_with("== files, lines: 101 (median 51, 90 % at most 91)\n101\n100\n"));
        assert_eq!(text.lines().count(), 1 + SHOWN);
    }
}
