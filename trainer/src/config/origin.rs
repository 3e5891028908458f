//! Preset or file that a configuration starts from, and the line of an error in it.

use std::ops::Range;
use std::path::{Path, PathBuf};

use record::files::regular_file::read_named_text;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, Deserializer, Error};

use crate::failure::{Failure, Outcome};
use record::limits::CONFIG_BYTES_MAX;
use record::text::in_user_words;

/// Preset or file, and the overrides of the command line.
pub(super) struct Origin<'a> {
    /// Text that the user wrote after --workload.
    named: &'a str,
    overrides: &'a [String],
    /// Name for people.
    pub(super) name: String,
    /// Base folder of relative data files.
    pub(super) base: PathBuf,
    /// Whole text.
    pub(super) text: String,
}

impl<'a> Origin<'a> {
    /// Reads a preset or a file.
    pub(super) fn read(named: &'a str, overrides: &'a [String]) -> Outcome<Self> {
        if let Some(text) = models::presets::text(named) {
            let name = named.to_owned();
            let base = PathBuf::from(".");
            return Ok(Self { named, overrides, name, base, text: text.to_owned() });
        }
        let path = Path::new(named);
        let text = read_named_text(path, CONFIG_BYTES_MAX).map_err(|error| {
            let error = error.source;
            Failure::usage(format!(
                "--workload {named}: neither a preset nor a readable file ({error})\n  \
                 hint: presets are {}",
                models::presets::names().collect::<Vec<_>>().join(", ")
            ))
        })?;
        Ok(Self::of_file(named, overrides, text))
    }

    /// Uses the text of a file.
    pub(super) fn of_file(named: &'a str, overrides: &'a [String], text: String) -> Self {
        let path = Path::new(named);
        let name = path.file_stem().map_or(named.into(), |stem| stem.to_string_lossy());
        let base = path.parent().unwrap_or(Path::new(".")).to_owned();
        Self { named, overrides, name: name.into_owned(), base, text }
    }

    /// Returns the error for text that is not TOML.
    pub(super) fn not_toml(&self, error: &Error) -> Failure {
        let location = self.location(error.span().map(|span| span.start));
        Failure::usage(format!("{location}: not valid TOML: {}", error.message()))
    }

    /// Returns the error for an unknown or missing key, or a value of the wrong type. It names the
    /// file if the file without overrides has the same error, `--set` if the file has none, and
    /// both if the file has a different one.
    pub(super) fn misfit<T>(&self, error: &Error, is_of_half: impl Fn(&str) -> bool) -> Failure
    where
        T: for<'de> Deserialize<'de>,
    {
        let location = match self.misfit_alone::<T>(is_of_half) {
            Some((message, span)) if message == error.message() => {
                self.location(span.map(|span| span.start))
            }
            _ if self.overrides.is_empty() => self.named.to_owned(),
            None => "--set".to_owned(),
            Some(_) => format!("{} with --set", self.named),
        };
        let shown = error.to_string();
        let key = shown.strip_prefix(error.message()).unwrap_or_default().trim_end();
        let message = in_user_words(error.message());
        Failure::usage(format!("{location}: {message}{}", key.replace('\n', " ")))
    }

    /// Returns the error of the text without overrides, and its range if that is not the whole
    /// text.
    fn misfit_alone<T>(
        &self,
        is_of_half: impl Fn(&str) -> bool,
    ) -> Option<(String, Option<Range<usize>>)>
    where
        T: for<'de> Deserialize<'de>,
    {
        let document = DeTable::parse(&self.text).ok()?;
        let whole = document.span();
        let sections = document.into_inner().into_iter();
        let half: DeTable<'_> = sections.filter(|(key, _)| is_of_half(key.get_ref())).collect();
        let half = Spanned::new(whole.clone(), half);
        let error = T::deserialize(Deserializer::from(half)).err()?;
        Some((error.message().to_owned(), error.span().filter(|span| *span != whole)))
    }

    /// Adds the origin of an impossible value. It is the file, if that has the same error `alone`,
    /// without overrides. It is the file with `--set`, if the file alone has a different error and
    /// the key is in the file and not overridden.
    pub(super) fn blame(&self, failure: Failure, alone: Option<&Failure>) -> Failure {
        let (Some(models::Error::Invalid { key, .. }), Some(alone)) =
            (failure.error.downcast_ref(), alone)
        else {
            return failure;
        };
        let offset = self.offset_of(key);
        let is_same = alone.error.to_string() == failure.error.to_string();
        if !is_same && (offset.is_none() || self.is_overridden(key)) {
            return failure;
        }
        let with = if is_same { "" } else { ", with --set" };
        failure.context(format!("{}{with}", self.location(offset)))
    }

    fn is_overridden(&self, key: &str) -> bool {
        let keys = self.overrides.iter().filter_map(|item| item.split_once('='));
        keys.map(|(path, _)| path.trim()).any(|path| {
            key.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }

    /// Returns the offset of a dotted key in the text.
    fn offset_of(&self, key: &str) -> Option<usize> {
        let document = DeTable::parse(&self.text).ok()?;
        let mut table = Some(document.get_ref());
        let mut offset = None;
        for part in key.split('.') {
            let (found, value) = table?.iter().find(|(key, _)| key.get_ref() == part)?;
            table = value.get_ref().as_table();
            offset = Some(found.span().start);
        }
        offset
    }

    fn location(&self, offset: Option<usize>) -> String {
        let line = |offset: usize| self.text[..offset].matches('\n').count() + 1;
        let named = self.named;
        offset.map_or(named.to_owned(), |offset| format!("{named}, line {}", line(offset)))
    }
}
