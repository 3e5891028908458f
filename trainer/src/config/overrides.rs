//! `--set section.key=value`.

use toml::{Table, Value};

use crate::failure::{Failure, Outcome};

/// Puts one override into the table. A value that is not TOML is taken as a string.
pub(super) fn apply(table: &mut Table, item: &str) -> Outcome<()> {
    let usage = |what: &str| Failure::usage(format!("--set {item}: {what}"));
    let (path, text) = item.split_once('=').ok_or_else(|| usage("expected section.key=value"))?;
    let (section, key) =
        path.trim().split_once('.').ok_or_else(|| usage("expected section.key before the ="))?;
    if section.is_empty() || key.is_empty() {
        return Err(usage("expected section.key before the ="));
    }
    let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    let section = section.as_table_mut().ok_or_else(|| usage("the section is not a table"))?;
    let value = parse(text.trim());
    // The two ways to size a batch exclude each other: naming one takes back the other.
    match key {
        "global_sequences" => drop(section.remove("sequences_per_rank")),
        "sequences_per_rank" => drop(section.remove("global_sequences")),
        _ => {}
    }
    section.insert(key.to_owned(), value);
    Ok(())
}

fn parse(text: &str) -> Value {
    let document: Result<Table, _> = format!("value = {text}").parse();
    match document {
        Ok(mut table) if table.len() == 1 => {
            table.remove("value").unwrap_or_else(|| Value::String(text.to_owned()))
        }
        _ => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str, items: &[&str]) -> Outcome<Table> {
        let mut table: Table = text.parse().unwrap();
        items.iter().try_for_each(|item| apply(&mut table, item))?;
        Ok(table)
    }

    #[test]
    fn the_last_override_wins() {
        let table = set("[a]\nb = 1", &["a.b=2", "a.b=3", "c.d=x y"]).unwrap();
        assert_eq!(table["a"]["b"].as_integer(), Some(3));
        assert_eq!(table["c"]["d"].as_str(), Some("x y"));
    }

    #[test]
    fn naming_one_batch_size_takes_back_the_other() {
        let table = set("[batch]\nglobal_sequences = 8", &["batch.sequences_per_rank=2"]).unwrap();
        assert_eq!(table["batch"].as_table().unwrap().len(), 1);
    }

    #[test]
    fn refuses_what_is_no_assignment() {
        for item in ["a.b", "ab=1", ".b=1", "a.=1", "=1"] {
            let failure = set("", &[item]).unwrap_err();
            assert!(failure.to_string().contains("section.key"), "{item}: {failure}");
        }
    }
}
