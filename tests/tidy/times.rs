//! Rules about the seconds of groups of tests: every group has a row, no other has one, and each
//! table adds up to at most its limit.

use std::collections::BTreeSet;

use crate::files::File;

const TIMES: &str = "tests/times.toml";

/// Tables with the variable of the Makefile that lists its groups, and the limit of their sum in
/// seconds: 25 minutes; with lint 35; and 45 with the setup and the build.
const TABLES: [(&str, &str, f64); 4] = [
    ("test", "TEST_GROUPS", 1500.0),
    ("lint", "LINT_GROUPS", 600.0),
    ("matrix", "MATRIX_GROUPS", 2300.0),
    ("soak", "SOAK_GROUPS", f64::INFINITY),
];

/// Groups with a row that their variable does not list.
const OTHERS: [(&str, &str); 2] = [("test", "setup-test"), ("soak", "k8s-e2e")];

pub(crate) fn violations(files: &[File]) -> Vec<String> {
    let find = |path| files.iter().find(|file| file.path == path);
    let (Some(times), Some(makefile)) = (find(TIMES), find("Makefile")) else {
        return vec![format!("{TIMES}:1: is missing, or the Makefile")];
    };
    let table: toml::Table = match times.text.parse() {
        Ok(table) => table,
        Err(error) => return vec![times.at(1, error)],
    };
    let mut found = Vec::new();
    for (name, variable, most) in TABLES {
        let empty = toml::Table::new();
        let rows = table.get(name).and_then(toml::Value::as_table).unwrap_or(&empty);
        let sum: f64 = rows.values().filter_map(seconds).sum();
        if sum > most {
            found.push(times.at(1, format!("[{name}] adds up to {sum} s, at most {most}")));
        }
        let mut groups = words(makefile, variable);
        groups.extend(OTHERS.iter().filter(|(of, _)| *of == name).map(|(_, group)| *group));
        let rows: BTreeSet<&str> = rows.keys().map(String::as_str).collect();
        for group in groups.difference(&rows) {
            found.push(times.at(1, format!("[{name}] has no row {group}")));
        }
        for row in rows.difference(&groups) {
            found.push(times.at(1, format!("[{name}] has a row {row}, which is not a group")));
        }
    }
    found
}

fn seconds(row: &toml::Value) -> Option<f64> {
    row.as_float().or_else(|| row.as_integer().map(|whole| whole as f64))
}

/// The words that a variable of the Makefile is set to.
fn words<'a>(makefile: &'a File, variable: &str) -> BTreeSet<&'a str> {
    let start = format!("{variable} :=");
    let mut lines = makefile.text.lines().skip_while(|line| !line.starts_with(&start));
    let mut words = BTreeSet::new();
    for line in lines.by_ref() {
        let values = line.strip_prefix(&start).unwrap_or(line);
        words.extend(values.trim_end_matches('\\').split_whitespace());
        if !line.ends_with('\\') {
            break;
        }
    }
    words
}

#[test]
fn sums_and_rows_are_checked() {
    let makefile = "TEST_GROUPS := test-a \\\n\ttest-b\nLINT_GROUPS := docs\n";
    let check =
        |times: &str| violations(&[File::sample(TIMES, times), File::sample("Makefile", makefile)]);
    let good = "[test]\nsetup-test = 1\ntest-a = 1.5\ntest-b = 1497.5\n[lint]\ndocs = 600\n\
                [soak]\nk8s-e2e = 9999\n";
    assert_eq!(check(good), [""; 0]);
    let slow = check(&good.replace("1.5", "1.6"));
    assert_eq!(slow, ["tests/times.toml:1: [test] adds up to 1500.1 s, at most 1500"]);
    let missing = check(&good.replace("test-b = 1497.5\n", ""));
    assert_eq!(missing, ["tests/times.toml:1: [test] has no row test-b"]);
    let other = check(&good.replace("docs", "dogs"));
    assert_eq!(other.len(), 2, "{other:?}");
    assert_eq!(check("[test").len(), 1, "not TOML");
    assert_eq!(violations(&[]).len(), 1, "no list");
}
