//! Lists of errors to plant: the text of each one occurs exactly once in its file. The scripts that
//! plant them run rarely, and would be the last to notice that the code has moved.

use std::collections::BTreeMap;

use crate::files::File;

/// Error to plant.
#[derive(Debug, Default)]
struct Mutant {
    /// Line of its name in the list, counted from 1.
    line: usize,
    name: String,
    file: String,
    text: String,
}

/// Reads a list: a name, a file, lines of the text that begin with `-`.
fn mutants(list: &File) -> Vec<Mutant> {
    let mut found: Vec<Mutant> = Vec::new();
    for (number, line) in (1..).zip(list.text.lines()) {
        if line.starts_with("mutant ") || line.starts_with("control ") {
            found.push(Mutant { line: number, name: line.to_owned(), ..Mutant::default() });
        }
        let Some(mutant) = found.last_mut() else { continue };
        if let Some(file) = line.strip_prefix("file ") {
            mutant.file = file.to_owned();
        } else if let Some(text) = line.strip_prefix('-') {
            let separator = if mutant.text.is_empty() { "" } else { "\n" };
            mutant.text.extend([separator, text]);
        }
    }
    found
}

pub(crate) fn violations(files: &[File]) -> Vec<String> {
    let texts: BTreeMap<&str, &str> =
        files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    let is_list = |file: &&File| file.path.ends_with("/mutants.txt");
    let of_list = |list: &File| -> Vec<String> {
        let wrong = |mutant: Mutant| {
            let Mutant { line, name, file, text } = mutant;
            let count = texts.get(file.as_str()).map_or(0, |whole| whole.matches(&text).count());
            (count != 1)
                .then(|| list.at(line, format!("{name}: {count} times in {file}, not once")))
        };
        mutants(list).into_iter().filter_map(wrong).collect()
    };
    files.iter().filter(is_list).flat_map(of_list).collect()
}

#[test]
fn a_text_that_is_not_in_its_file_once_is_found() {
    let list = "About.\n\nmutant a\nfile x.rs\n-one\n-two\n+three\n\ncontrol b\nfile x.rs\n-four\n";
    let files = |text: &str| [File::sample("tests/mutants.txt", list), File::sample("x.rs", text)];
    assert_eq!(violations(&files("one\ntwo\nfour\n")), Vec::<String>::new());
    assert_eq!(
        violations(&files("one\nfour four\n")),
        [
            "tests/mutants.txt:3: mutant a: 0 times in x.rs, not once",
            "tests/mutants.txt:9: control b: 2 times in x.rs, not once"
        ]
    );
}
