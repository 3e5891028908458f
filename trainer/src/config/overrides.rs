//! Overrides by `--set section.key=value`, or deeper, as in `model.rope_scaling.factor=8`.

use record::text::redacted;
use toml::{Table, Value};

use crate::failure::{Failure, Outcome};

/// Sets one value in the table. A value that is not TOML is taken as a string.
pub(super) fn apply(table: &mut Table, item: &str) -> Outcome<()> {
    let shown = redacted(item);
    let usage = |what: &str| Failure::usage(format!("--set {shown}: {what}"));
    let (path, text) = item.split_once('=').ok_or_else(|| usage("expected section.key=value"))?;
    let path: Vec<&str> = path.trim().split('.').collect();
    let is_path = path.len() > 1 && !path.contains(&"");
    let (key, tables) = path
        .split_last()
        .filter(|_| is_path)
        .ok_or_else(|| usage("expected section.key before the ="))?;
    let mut table = table;
    for (depth, name) in tables.iter().enumerate() {
        let value = table.entry(*name).or_insert_with(|| Value::Table(Table::new()));
        let shown = tables[..=depth].join(".");
        table = value.as_table_mut().ok_or_else(|| usage(&format!("{shown} is not a table")))?;
    }
    let value = parse(text.trim());
    // The two sizes of a batch exclude each other: setting one removes the other.
    match (tables, *key) {
        (["batch"], "global_sequences") => drop(table.remove("sequences_per_rank")),
        (["batch"], "sequences_per_rank") => drop(table.remove("global_sequences")),
        _ => {}
    }
    table.insert((*key).to_owned(), value);
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
    fn setting_one_batch_size_removes_the_other() {
        let table = set("[batch]\nglobal_sequences = 8", &["batch.sequences_per_rank=2"]).unwrap();
        assert_eq!(table["batch"].as_table().unwrap().len(), 1);
    }

    #[test]
    fn keys_of_a_nested_table_can_be_set() {
        let text = "[a]\nn = 1\n[a.b]\nc = 1\nd = 2";
        let table = set(text, &["a.b.c=3", "a.new.e=4"]).unwrap();
        let found = |path: [&str; 2]| table["a"][path[0]][path[1]].as_integer();
        assert_eq!([["b", "c"], ["b", "d"], ["new", "e"]].map(found), [3, 2, 4].map(Some));
        let failure = set(text, &["a.n.x=1"]).unwrap_err().to_string();
        assert!(failure.contains("a.n is not a table"), "{failure}");
    }

    #[test]
    fn what_is_not_an_assignment_is_refused() {
        for item in ["a.b", "ab=1", ".b=1", "a.=1", "=1", "a..b=1", "a.b.=1"] {
            let failure = set("", &[item]).unwrap_err();
            assert!(failure.to_string().contains("section.key"), "{item}: {failure}");
        }
    }
}
