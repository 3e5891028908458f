//! Rule about waiting: a test names no sleep or deadline above three seconds but those that are
//! listed with a reason, and the list has no stale entry. Twenty seconds and more are limits that
//! only a test that fails reaches.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::files::File;

const SLOW: &str = "tests/slow.toml";
const SLOW_SECONDS: Range<u64> = 4..20;

pub(crate) fn violations(files: &[File]) -> Vec<String> {
    let Some(list) = files.iter().find(|file| file.path == SLOW) else {
        return vec![format!("{SLOW}:1: is missing")];
    };
    let listed = match listed(list) {
        Ok(listed) => listed,
        Err(violation) => return vec![violation],
    };
    let mut found = Vec::new();
    let mut all = BTreeSet::new();
    for file in files.iter().filter(|file| is_test(&file.path)) {
        for (number, line) in (1..).zip(file.text.lines()) {
            for text in waits(line) {
                let entry = (file.path.clone(), text.clone());
                if !listed.contains(&entry) {
                    found.push(file.at(number, format!("{text}: not in {SLOW}")));
                }
                all.insert(entry);
            }
        }
    }
    for (path, text) in listed.difference(&all) {
        found.push(list.at(1, format!("no {text} in {path}")));
    }
    found
}

fn is_test(path: &str) -> bool {
    let is_test = path.starts_with("tests/") || path.contains("/tests/");
    is_test && path.ends_with(".rs") && !path.starts_with("tests/tidy/")
}

/// Slow durations in a line, as they are written: `from_secs(10)`, `10s`.
fn waits(line: &str) -> Vec<String> {
    let in_rust = line.match_indices("from_secs(").map(|(start, call)| (start + call.len(), ")"));
    let in_text = line.match_indices(['"', '=', ' ']).map(|(start, _)| (start + 1, "s"));
    let slow = in_rust.chain(in_text).filter_map(|(start, unit)| {
        let rest = &line[start..];
        let (digits, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let seconds: u64 = digits.parse().ok()?;
        let after = after.strip_prefix(unit)?;
        let text = match unit {
            ")" => format!("from_secs({seconds})"),
            _ if after.starts_with(['"', ' ', ',']) => format!("{seconds}s"),
            _ => return None,
        };
        SLOW_SECONDS.contains(&seconds).then_some(text)
    });
    slow.collect()
}

/// File and text of each entry.
fn listed(list: &File) -> Result<BTreeSet<(String, String)>, String> {
    let table: toml::Table = list.text.parse().map_err(|error| list.at(1, error))?;
    let mut entries = BTreeSet::new();
    for entry in table.get("slow").and_then(toml::Value::as_array).into_iter().flatten() {
        let text = |key| entry.get(key).and_then(toml::Value::as_str).unwrap_or("").to_owned();
        let texts = entry.get("texts").and_then(toml::Value::as_array).into_iter().flatten();
        let texts: Vec<_> = texts.filter_map(toml::Value::as_str).collect();
        if text("file").is_empty() || text("reason").is_empty() || texts.is_empty() {
            return Err(list.at(1, format!("an entry lacks file, texts or reason: {entry}")));
        }
        entries.extend(texts.into_iter().map(|one| (text("file"), one.to_owned())));
    }
    Ok(entries)
}

#[test]
fn long_waits_without_an_entry_are_found() {
    let slow = "sleep(Duration::from_secs(4)); f(\"--deadline 12s\", \"linger=19s\")";
    assert_eq!(waits(slow), ["from_secs(4)", "12s", "19s"]);
    assert_eq!(waits("from_secs(3), from_secs(60), \"3s\", \"60s\", \"5steps\", 9 s, 40"), [""; 0]);
    let test = "const LONG: Duration = Duration::from_secs(10);\n";
    let check =
        |list: &str| violations(&[File::sample("tests/a.rs", test), File::sample(SLOW, list)]);
    let entry = "[[slow]]\nfile = \"tests/a.rs\"\ntexts = [\"from_secs(10)\"]\nreason = \"why\"\n";
    assert_eq!(check(entry), [""; 0]);
    assert_eq!(check(""), ["tests/a.rs:1: from_secs(10): not in tests/slow.toml"]);
    assert_eq!(check(&entry.replace("10", "11")).len(), 2, "another, and a stale entry");
    assert_eq!(check(&entry.replace("reason", "reasons")).len(), 1, "no reason");
    assert_eq!(violations(&[]).len(), 1, "no list");
}
