//! Token files, written whole or not at all.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{BufWriter, ErrorKind, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use super::{
    DataError,
    format::{Format, LLMC_HEADER_BYTES, LLMC_MAGIC, LLMC_VERSION},
    megatron,
};

/// A file that gets its name only when it is complete and on the disk.
#[derive(Debug)]
struct AtomicFile {
    path: PathBuf,
    temporary: PathBuf,
    file: BufWriter<File>,
    committed: bool,
}

impl AtomicFile {
    fn create(path: &Path) -> Result<Self, DataError> {
        let mut temporary = OsString::from(path);
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        let file = File::create(&temporary).map_err(DataError::io(&temporary, "create"))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { path: path.to_owned(), temporary, file, committed: false })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.file.write_all(bytes).map_err(DataError::io(&self.temporary, "write"))
    }

    fn commit(mut self) -> Result<(), DataError> {
        self.file.flush().map_err(DataError::io(&self.temporary, "write"))?;
        self.file.get_ref().sync_all().map_err(DataError::io(&self.temporary, "sync"))?;
        fs::rename(&self.temporary, &self.path).map_err(DataError::io(&self.path, "rename to"))?;
        self.committed = true;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(DataError::io(folder, "sync the folder"))
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            let _ = fs::remove_file(&self.temporary); // best effort: the name says what it is
        }
    }
}

/// Writes uint16 tokens in one of the formats.
#[derive(Debug)]
pub(super) struct TokenWriter {
    format: Format,
    out: AtomicFile,
    tokens: u64,
    document_tokens: u64,
    lengths: Vec<i32>, // of documents; filled for every format, to count them
}

impl TokenWriter {
    /// Begins a file; nothing is seen under its name before [`TokenWriter::finish`].
    pub(super) fn create(path: &Path, format: Format) -> Result<Self, DataError> {
        let index = path.with_extension("idx");
        if format == Format::Raw && index.exists() {
            let reason = format!(
                "{} beside it would make it a Megatron file; remove that or choose another name",
                index.display()
            );
            return Err(DataError::Unwritable { path: path.to_owned(), format: "raw", reason });
        }
        if format == Format::Megatron && index == path {
            let reason = "the tokens need a name of their own; end it in .bin".to_owned();
            return Err(DataError::Unwritable { path: index, format: "megatron", reason });
        }
        let mut out = AtomicFile::create(path)?;
        if format == Format::LlmC {
            out.write(&[0; LLMC_HEADER_BYTES])?;
        }
        Ok(Self { format, out, tokens: 0, document_tokens: 0, lengths: Vec::new() })
    }

    /// Appends tokens to the current document.
    pub(super) fn push(&mut self, tokens: &[u16]) -> Result<(), DataError> {
        for token in tokens {
            self.out.write(&token.to_le_bytes())?;
        }
        self.tokens += tokens.len() as u64;
        self.document_tokens += tokens.len() as u64;
        if self.format != Format::Raw && self.tokens > i32::MAX as u64 {
            let reason = "more than 2147483647 tokens; split the input or write raw".to_owned();
            return Err(self.unwritable(reason));
        }
        Ok(())
    }

    /// Ends the current document.
    pub(super) fn end_document(&mut self) {
        self.lengths.push(i32::try_from(self.document_tokens).unwrap_or(i32::MAX));
        self.document_tokens = 0;
    }

    /// Tokens so far.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Documents so far.
    pub(super) fn documents(&self) -> u64 {
        self.lengths.len() as u64
    }

    /// Completes the file and gives it its name.
    pub(super) fn finish(mut self) -> Result<(), DataError> {
        match self.format {
            Format::Raw => self.out.commit(),
            Format::LlmC => {
                let seek = self.out.file.seek(SeekFrom::Start(0));
                seek.map_err(DataError::io(&self.out.temporary, "seek in"))?;
                for value in [LLMC_MAGIC, LLMC_VERSION, self.tokens as u32] {
                    self.out.write(&value.to_le_bytes())?;
                }
                self.out.commit()
            }
            Format::Megatron => {
                let mut index = AtomicFile::create(&self.out.path.with_extension("idx"))?;
                write_index(&mut index, &self.lengths)?;
                // A kill between the two names must not leave new tokens with an old index.
                match fs::remove_file(&index.path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(DataError::io(&index.path, "remove")(error));
                    }
                    _ => {}
                }
                self.out.commit()?;
                index.commit()
            }
        }
    }

    fn unwritable(&self, reason: String) -> DataError {
        let format = if self.format == Format::LlmC { "llmc" } else { "megatron" };
        DataError::Unwritable { path: self.out.path.clone(), format, reason }
    }
}

/// Megatron's index; each document is one sequence.
fn write_index(index: &mut AtomicFile, lengths: &[i32]) -> Result<(), DataError> {
    let documents = lengths.len() as u64;
    index.write(megatron::MAGIC)?;
    index.write(&megatron::VERSION.to_le_bytes())?;
    index.write(&[megatron::UINT16])?;
    index.write(&documents.to_le_bytes())?;
    index.write(&(documents + 1).to_le_bytes())?;
    for length in lengths {
        index.write(&length.to_le_bytes())?;
    }
    let mut offset = 0_i64;
    for length in lengths {
        index.write(&offset.to_le_bytes())?;
        offset += 2 * i64::from(*length);
    }
    for mark in 0..=documents {
        index.write(&mark.to_le_bytes())?;
    }
    Ok(())
}
