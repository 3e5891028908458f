//! Journal of uploads in parts: an object beside each, with which another process can abort an
//! upload that nobody will complete.
//!
//! A store keeps the parts of such an upload for ever, and lists it only to roles that may ask for
//! that. The journal is written before the first part and deleted after the last. It is never
//! needed to complete an upload: one whose journal fails is completed all the same, and if it is
//! left open then, a lifecycle rule of the bucket removes it.

use std::io::ErrorKind;

use super::{Multipart, Remote};
use record::files::IoError;

const SUFFIX: &str = ".upload.json";

/// Largest journal that is read: one of ours has a few hundred bytes.
const BYTES_MAX: u64 = 64 << 10;

/// Key of the journal of an object's upload.
fn journal_of(key: &str) -> String {
    format!("{key}{SUFFIX}")
}

impl Remote {
    /// Starts an upload in parts, as [`Remote::create_multipart`], and writes its journal. An
    /// earlier upload of this key that was left open is aborted.
    ///
    /// # Errors
    /// As [`Remote::create_multipart`]; a journal that cannot be read or written is none.
    pub fn create_journaled(&self, key: &str) -> Result<Multipart, IoError> {
        let journal = journal_of(key);
        drop(self.abort_named_by(&journal));
        let upload = self.create_multipart(key)?;
        if let Ok(text) = serde_json::to_vec(&upload) {
            drop(self.put(&journal, text));
        }
        Ok(upload)
    }

    /// Deletes the journal of an upload that is completed or aborted. One that stays names an
    /// upload that does not exist, and is deleted with the folder that it is in.
    pub fn delete_journal(&self, upload: &Multipart) {
        drop(self.delete(&journal_of(&upload.key)));
    }

    /// Keys of the journals under a folder, at any depth: one for each upload that is left open or
    /// in flight.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn list_journals(&self, folder: &str) -> Result<Vec<String>, IoError> {
        let mut keys = self.list_all(folder)?;
        keys.retain(|key| is_journal(key));
        Ok(keys)
    }

    /// Aborts the uploads whose journals are among these keys. The journals stay.
    ///
    /// # Errors
    /// When a store may still have one, but not where it does not allow to abort: asking again
    /// would not help, and what is in the way of a deletion must not stay for ever.
    pub fn abort_journaled(&self, keys: &[String]) -> Result<(), IoError> {
        keys.iter().filter(|key| is_journal(key)).try_for_each(|key| self.abort_named_by(key))
    }

    fn abort_named_by(&self, journal: &str) -> Result<(), IoError> {
        let Some(upload) = self.read_journal(journal)? else { return Ok(()) };
        match self.abort_multipart(&upload) {
            Err(IoError { source, .. })
                if matches!(
                    source.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::Unsupported
                ) =>
            {
                Ok(())
            }
            aborted => aborted,
        }
    }

    /// The upload that a journal names; `None` where there is no journal, or none that can be one.
    fn read_journal(&self, journal: &str) -> Result<Option<Multipart>, IoError> {
        match self.read(journal, BYTES_MAX) {
            Ok(text) => Ok(parse(journal, &text)),
            Err(error)
                if matches!(error.source.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn is_journal(key: &str) -> bool {
    key.ends_with(SUFFIX)
}

/// Parses a journal. Uploads of other keys than the journal's own are ignored, whatever it says.
fn parse(journal: &str, text: &[u8]) -> Option<Multipart> {
    let upload: Multipart = serde_json::from_slice(text).ok()?;
    (journal_of(&upload.key) == journal).then_some(upload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_names_an_upload_of_its_own_key_only() {
        let upload = Multipart { key: "s1/d00/shard".to_owned(), upload_id: "id".to_owned() };
        let text = serde_json::to_vec(&upload).unwrap();
        assert_eq!(parse("s1/d00/shard.upload.json", &text), Some(upload));
        assert_eq!(parse("s2/d00/shard.upload.json", &text), None);
        assert_eq!(parse("s1/d00/shard.upload.json", &text[1..]), None);
    }
}
