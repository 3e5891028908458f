//! Parser for the files of AWS's tools that follows Python's `RawConfigParser`, which botocore
//! uses: <https://docs.python.org/3/library/configparser.html#supported-ini-file-structure> and
//! `configloader.py` of <https://github.com/boto/botocore>.

use std::collections::BTreeMap;

/// Values by the names of their settings, in lower case.
pub(super) type Section = BTreeMap<String, Value>;

/// A value, and where it is in its file: errors name the line, which may have a secret, and do not
/// show it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Value {
    /// Several lines in a nested value.
    pub(super) text: String,
    /// The number of each of its lines.
    numbers: Vec<usize>,
}

/// Sections by what stands between their brackets. Those of [`DEFAULTS`] are in every other one.
///
/// # Errors
/// The number of the line that is none of such a file, and what is wrong with it.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, Section>, String> {
    let mut file = File::default();
    for (number, line) in (1..).zip(text.lines()) {
        file.number = number;
        file.read(line).map_err(|what| format!("line {number}: {what}"))?;
    }
    Ok(file.sections())
}

/// Section whose settings are also in all other sections.
const DEFAULTS: &str = "DEFAULT";

#[derive(Default)]
struct File {
    sections: BTreeMap<String, Section>,
    section: Option<String>,
    /// The setting that a line with more indentation continues.
    setting: Option<String>,
    indentation: usize,
    /// Number of the line that is read.
    number: usize,
}

impl File {
    fn read(&mut self, line: &str) -> Result<(), &'static str> {
        let content = line.trim();
        if content.is_empty() || content.starts_with(['#', ';']) {
            return Ok(());
        }
        let indentation = line.len() - line.trim_start().len();
        if indentation > self.indentation && self.continues(content) {
            return Ok(());
        }
        self.indentation = indentation;
        match content.strip_prefix('[').and_then(|rest| rest.rsplit_once(']')) {
            Some((title, _comment)) => self.begin(title),
            None => self.set(content),
        }
    }

    /// Adds a line to the value before it, if there is one.
    fn continues(&mut self, content: &str) -> bool {
        let section = self.section.as_ref().and_then(|title| self.sections.get_mut(title));
        let value = section.zip(self.setting.as_ref()).and_then(|(all, name)| all.get_mut(name));
        let Some(value) = value else { return false };
        value.text.push('\n');
        value.text.push_str(content);
        value.numbers.push(self.number);
        true
    }

    fn begin(&mut self, title: &str) -> Result<(), &'static str> {
        let is_new = !self.sections.contains_key(title) || title == DEFAULTS;
        self.sections.entry(title.to_owned()).or_default();
        self.section = Some(title.to_owned());
        self.setting = None;
        is_new.then_some(()).ok_or("the section is there a second time")
    }

    fn set(&mut self, content: &str) -> Result<(), &'static str> {
        let section = self.section.as_ref().and_then(|title| self.sections.get_mut(title));
        let section = section.ok_or("expected a [section] before it")?;
        let (name, value) =
            content.split_once(['=', ':']).ok_or("expected a [section] or NAME = VALUE")?;
        let name = name.trim().to_lowercase();
        if name.is_empty() {
            return Err("expected a name before the =");
        }
        self.setting = Some(name.clone());
        let value = Value { text: value.trim().to_owned(), numbers: vec![self.number] };
        let before = section.insert(name, value);
        before.is_none().then_some(()).ok_or("the setting is there a second time")
    }

    fn sections(mut self) -> BTreeMap<String, Section> {
        let defaults = self.sections.remove(DEFAULTS).unwrap_or_default();
        for section in self.sections.values_mut() {
            for (name, value) in &defaults {
                section.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        self.sections
    }
}

impl Value {
    /// The settings of a nested value, whose lines are indented below an empty one; of another
    /// value, none.
    ///
    /// # Errors
    /// The number of the line that is no setting.
    pub(super) fn nested(&self) -> Result<BTreeMap<String, &str>, usize> {
        let lines = self.text.strip_prefix('\n').unwrap_or_default().lines();
        let settings = lines.zip(self.numbers.iter().skip(1)).map(|(line, number)| {
            let (name, value) = line.split_once('=').ok_or(*number)?;
            Ok((name.trim().to_lowercase(), value.trim()))
        });
        settings.collect()
    }
}

/// Words as a shell splits them; quotes keep white space. `None` where a quote does not end.
pub(super) fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            (None | Some('"'), '\\') => word.get_or_insert_default().push(characters.next()?),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_line_that_is_no_setting_is_known_by_its_number() {
        let sections = parse("[a]\ns3 =\n  # ours\n\n  x = 1\n  y: 2\n").unwrap();
        assert_eq!(sections["a"]["s3"].nested(), Err(6));
        let sections = parse("[a]\ns3 =\n  # ours\n  x = 1\n").unwrap();
        assert_eq!(sections["a"]["s3"].nested(), Ok([("x".to_owned(), "1")].into()));
        let plain = parse("[a]\ns3 = x\n").unwrap();
        assert_eq!(plain["a"]["s3"].nested(), Ok(BTreeMap::new()));
    }
}
