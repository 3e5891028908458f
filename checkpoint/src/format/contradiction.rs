//! Fields of a file that contradict its name, its folder, or each other.
//!
//! A digest proves that a file is as its writer left it, not that the writer was this program: a
//! forged file carries a valid one. So no field is used before it is compared with the value that
//! it must have.

use std::fmt::Display;
use std::path::Path;

use crate::error::{Error, Result};

/// The fields of one file.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    /// The file, for errors.
    pub(super) path: &'a Path,
}

impl Fields<'_> {
    /// Requires one value of a field.
    ///
    /// # Errors
    /// [`Error::Damaged`] with the file, the field, and both values.
    pub(super) fn must_be<T: PartialEq + Display>(
        self,
        field: &str,
        found: T,
        expected: T,
    ) -> Result<()> {
        if found == expected { Ok(()) } else { Err(self.contradiction(field, found, expected)) }
    }

    /// Requires a condition that `expected` describes.
    ///
    /// # Errors
    /// [`Error::Damaged`] with the file, the field, and what was found.
    pub(super) fn must_hold(
        self,
        field: &str,
        holds: bool,
        found: impl Display,
        expected: &str,
    ) -> Result<()> {
        if holds { Ok(()) } else { Err(self.contradiction(field, found, expected)) }
    }

    /// The error of a field.
    fn contradiction(self, field: &str, found: impl Display, expected: impl Display) -> Error {
        Error::damaged(self.path, 0, format!("{field} = {expected}"), found)
    }
}
