//! `DIR/steps/rRRRRRR.jsonl`: one JSON object per step, one file per rank, in the order of steps.
//!
//! Each line is one `write`, so a killed process leaves complete lines. After a power failure there
//! may be damage after the last durable step, which a resumed run truncates.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use crate::files::{self, IoError, Mode, regular_file};

use super::sample::{StepLine, StepSample};
use crate::error::Error;

/// Path of a rank's steps in a run's folder.
pub fn steps_path(dir: &Path, rank: usize) -> PathBuf {
    dir.join("steps").join(format!("r{rank:06}.jsonl"))
}

/// Truncates the file of a rank's steps to the first `completed_steps`, passes each of those to
/// `keep`, and returns the nanoseconds of the steps that it removes.
///
/// A torn last line is removed too. A file that does not exist has no steps. Damaged or missing
/// steps are an error only on rank 0, whose file holds the losses of the run. On other ranks, which
/// lose only times of earlier attempts, damage is a warning and the damaged file is copied to
/// `rRRRRRR.STEPS.damaged`.
///
/// # Errors
/// [`Error::Io`], and on rank 0 [`Error::Malformed`] and [`Error::LostSteps`].
pub fn truncate_after(
    dir: &Path,
    rank: usize,
    completed_steps: u64,
    mut keep: impl FnMut(&StepSample),
) -> Result<u64, Error> {
    let path = &steps_path(dir, rank);
    let mut reader = read_steps(path)?;
    let (mut found, mut kept_bytes, mut removed_ns, mut damage) = (0, 0, 0, None);
    let mut last_step = 0;
    while let Some(line) = reader.next() {
        let sample = match line {
            Ok(line) => line.sample,
            Err(error @ Error::Malformed { .. }) => {
                damage = Some(error);
                break;
            }
            Err(error) => return Err(error),
        };
        last_step = sample.step;
        if sample.step > completed_steps {
            removed_ns += sample.wall_ns;
            continue;
        }
        found += u64::from(sample.step == found + 1);
        kept_bytes = reader.position_bytes;
        keep(&sample);
    }
    if let Some(damage) = damage.filter(|_| last_step < completed_steps) {
        if rank == 0 {
            return Err(damage);
        }
        let copy = path.with_extension(format!("{completed_steps}.damaged"));
        match copy_file(path, &copy) {
            Ok(()) => tracing::warn!("{damage}; the file was copied to {}", copy.display()),
            Err(error) => tracing::warn!("{damage}; the steps after it are lost: {error}"),
        }
    }
    if rank == 0 && found < completed_steps {
        return Err(Error::LostSteps { path: path.clone(), expected: completed_steps, found });
    }
    let length = fs::metadata(path).map_or(0, |metadata| metadata.len());
    if kept_bytes < length {
        let file = regular_file::open_to_write(path)?;
        file.set_len(kept_bytes).map_err(IoError::at(path, "truncate"))?;
        file.sync_all().map_err(IoError::at(path, "sync"))?;
    }
    Ok(removed_ns)
}

fn copy_file(from: &Path, to: &Path) -> Result<(), IoError> {
    let mut source = regular_file::open_to_read(from)?;
    let mut copy = regular_file::create_anew(to, Mode::Run)?;
    io::copy(&mut source, &mut copy).map(drop).map_err(IoError::at(to, "write"))
}

/// Returns the steps in a rank's file, one by one, without a torn last line; none without a file.
///
/// # Errors
/// [`Error::Io`]. A step may also be [`Error::Malformed`], for a bad line that is not the last; no
/// step follows it.
pub fn read_steps(path: &Path) -> Result<StepReader, Error> {
    let file = match regular_file::open_to_read(path) {
        Ok(file) => Some(BufReader::new(file)),
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    let path = path.to_owned();
    Ok(StepReader { path, file, text: Vec::new(), line: 0, position_bytes: 0 })
}

/// Maximum length of a line. A longer one is not a step: a power failure may leave gigabytes of
/// zeros.
const LINE_BYTES_MAX: u64 = 1 << 16;

/// Reads a file of steps. See [`read_steps`].
#[derive(Debug)]
pub struct StepReader {
    path: PathBuf,
    /// `None` at the end.
    file: Option<BufReader<File>>,
    text: Vec<u8>,
    line: usize,
    /// Offset of the byte after the last line that was returned.
    position_bytes: u64,
}

impl StepReader {
    fn read(&mut self) -> Result<Option<StepLine>, Error> {
        let Some(file) = &mut self.file else { return Ok(None) };
        self.text.clear();
        self.line += 1;
        let failed = |error| IoError::at(&self.path, "read")(error);
        let mut limited = file.by_ref().take(LINE_BYTES_MAX);
        let length = limited.read_until(b'\n', &mut self.text).map_err(failed)?;
        if !self.text.ends_with(b"\n") {
            return Ok(None); // the end, or torn, even if it happens to parse
        }
        match serde_json::from_slice(&self.text) {
            Ok(line) => {
                self.position_bytes += length as u64;
                Ok(Some(line))
            }
            Err(_) if file.fill_buf().map_err(failed)?.is_empty() => Ok(None),
            Err(error) => Err(Error::Malformed {
                path: self.path.clone(),
                line: self.line,
                expected: "one step as JSON",
                error,
            }),
        }
    }
}

impl Iterator for StepReader {
    type Item = Result<StepLine, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if !matches!(read, Ok(Some(_))) {
            self.file = None;
        }
        read.transpose()
    }
}

/// Maximum number of bytes that are kept in memory until they are durable: a few thousand steps.
const UNSYNCED_BYTES_MAX: usize = 1 << 20;

/// Appends steps; owned by the telemetry thread.
///
/// A failed write loses nothing: lines are kept in memory until they are durable, and the next
/// [`StepFile::sync`], which is automatic after `UNSYNCED_BYTES_MAX`, writes them again.
#[derive(Debug)]
pub struct StepFile {
    path: PathBuf,
    file: File,
    /// Length of the durable part of the file.
    durable_bytes: u64,
    /// Lines after the durable part.
    unsynced: Vec<u8>,
    /// True if the file may lack some of these lines.
    is_behind: bool,
}

impl StepFile {
    /// Opens the file of a rank to append to it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(dir: &Path, rank: usize) -> Result<Self, Error> {
        let path = steps_path(dir, rank);
        let file = regular_file::open_to_append(&path, Mode::Run)?;
        files::sync_parent(&path)?; // makes the file's name durable
        let metadata = file.metadata().map_err(IoError::at(&path, "read the length of"))?;
        let durable_bytes = metadata.len();
        Ok(Self { path, file, durable_bytes, unsynced: Vec::new(), is_behind: false })
    }

    /// Writes one line in one system call. After an error, which is returned once, lines are only
    /// kept in memory until a sync succeeds.
    ///
    /// # Errors
    /// [`Error::Io`].
    ///
    /// # Panics
    /// When the line cannot be serialized, which plain data always can.
    pub fn append(&mut self, line: &StepLine) -> Result<(), Error> {
        let start = self.unsynced.len();
        serde_json::to_writer(&mut self.unsynced, line).expect("plain data in memory");
        self.unsynced.push(b'\n');
        if self.is_behind {
            // The error was returned before. Retry now and then, as the next save may be far away.
            let is_due = self.unsynced.len() / UNSYNCED_BYTES_MAX > start / UNSYNCED_BYTES_MAX;
            drop(is_due.then(|| self.sync()));
            return Ok(());
        }
        let written = self.file.write_all(&self.unsynced[start..]);
        self.is_behind = written.is_err();
        written.map_err(IoError::at(&self.path, "append to"))?;
        if self.unsynced.len() > UNSYNCED_BYTES_MAX { self.sync() } else { Ok(()) }
    }

    /// Makes every step so far durable.
    ///
    /// # Errors
    /// [`Error::Io`], also of an earlier line.
    pub fn sync(&mut self) -> Result<(), Error> {
        if self.is_behind {
            let truncated = self.file.set_len(self.durable_bytes);
            truncated.map_err(IoError::at(&self.path, "truncate"))?;
            let written = self.file.write_all(&self.unsynced);
            written.map_err(IoError::at(&self.path, "append to"))?;
        }
        // After a failed fsync the kernel may have dropped the dirty pages, and it does not report
        // the error again.
        self.is_behind = true;
        self.file.sync_data().map_err(IoError::at(&self.path, "sync"))?;
        self.durable_bytes += self.unsynced.len() as u64;
        self.unsynced.clear();
        self.is_behind = false;
        Ok(())
    }
}

#[cfg(any(test, feature = "fixtures"))]
impl StepFile {
    /// Returns rank 0's file on a full disk.
    ///
    /// # Panics
    /// Without `/dev/full`.
    pub fn on_full_disk(dir: &Path) -> Self {
        Self {
            path: steps_path(dir, 0),
            file: File::options().append(true).open("/dev/full").expect("a device of Linux"),
            durable_bytes: 0,
            unsynced: Vec::new(),
            is_behind: false,
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::fixtures::sample;

    fn lines_of(path: &Path) -> Result<Vec<StepLine>, Error> {
        read_steps(path)?.collect()
    }

    fn truncate(dir: &Path, rank: usize, completed: u64) -> Result<Vec<StepSample>, Error> {
        let mut kept = Vec::new();
        truncate_after(dir, rank, completed, |sample| kept.push(*sample))?;
        Ok(kept)
    }

    fn folder_with(rank: usize, steps: u64) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("steps")).unwrap();
        let mut file = StepFile::open(folder.path(), rank).unwrap();
        for step in 1..=steps {
            file.append(&StepLine::now(rank, sample(1, step))).unwrap();
        }
        file.sync().unwrap();
        let path = folder.path().join(format!("steps/r{rank:06}.jsonl"));
        (folder, path)
    }

    fn append(path: &Path, bytes: &[u8]) {
        File::options().append(true).open(path).unwrap().write_all(bytes).unwrap();
    }

    #[test]
    fn steps_are_read_back_unchanged() {
        let (_folder, path) = folder_with(3, 5);
        let expected: Vec<_> = (1..=5).map(|step| sample(1, step)).collect();
        let lines = lines_of(&path).unwrap();
        assert_eq!(lines.iter().map(|line| line.sample).collect::<Vec<_>>(), expected);
        assert!(lines.iter().all(|line| line.rank == 3 && line.unix_ms > 1_600_000_000_000));
        assert_eq!(lines_of(&path.with_extension("none")).unwrap(), []);
    }

    #[test]
    fn a_resumed_run_appends_after_its_checkpoint() {
        let (folder, path) = folder_with(3, 9);
        assert_eq!(truncate(folder.path(), 3, 6).unwrap().len(), 6);
        let mut file = StepFile::open(folder.path(), 3).unwrap();
        file.append(&StepLine::now(3, sample(2, 7))).unwrap();
        let lines = lines_of(&path).unwrap();
        let found: Vec<_> =
            lines.iter().map(|line| (line.sample.attempt, line.sample.step)).collect();
        assert_eq!(found, [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 7)]);
        assert_eq!(truncate(folder.path(), 3, 0).unwrap(), []);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn a_temporarily_full_disk_loses_no_step() {
        let (folder, path) = folder_with(3, 2);
        let mut file = StepFile::open(folder.path(), 3).unwrap();
        let append = |file: &mut StepFile, step| file.append(&StepLine::now(3, sample(1, step)));
        append(&mut file, 3).unwrap();
        file.sync().unwrap();
        append(&mut file, 4).unwrap();
        let writable = std::mem::replace(&mut file.file, File::open("/dev/full").unwrap());
        assert!(append(&mut file, 5).is_err());
        assert!(append(&mut file, 6).is_ok(), "the error is returned once");
        assert!(file.sync().is_err());
        file.file = writable;
        file.sync().unwrap();
        append(&mut file, 7).unwrap();
        file.sync().unwrap();
        let steps: Vec<u64> =
            lines_of(&path).unwrap().iter().map(|line| line.sample.step).collect();
        assert_eq!(steps, [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn lines_kept_in_memory_are_bounded() {
        let (folder, path) = folder_with(3, 0);
        let mut file = StepFile::open(folder.path(), 3).unwrap();
        for step in 1..=10_000 {
            file.append(&StepLine::now(3, sample(1, step))).unwrap();
            assert!(file.unsynced.len() < UNSYNCED_BYTES_MAX + 1024);
        }
        assert!(file.durable_bytes > 0, "synced automatically");
        assert_eq!(lines_of(&path).unwrap().len(), 10_000);
    }

    #[test]
    fn a_torn_last_line_is_removed_wherever_it_is_torn() {
        let (folder, path) = folder_with(3, 3);
        let whole = fs::read(&path).unwrap();
        let second_ends =
            whole.len() - whole.iter().rev().skip(1).position(|&b| b == b'\n').unwrap() - 1;
        let lengths =
            (second_ends..whole.len()).step_by(23).chain([whole.len() - 2, whole.len() - 1]);
        for length in lengths {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(lines_of(&path).unwrap().len(), 2, "cut at {length}");
            assert_eq!(truncate(folder.path(), 3, 100).unwrap().len(), 2, "cut at {length}");
            assert_eq!(fs::read(&path).unwrap(), whole[..second_ends], "cut at {length}");
        }
    }

    #[test]
    fn zeros_after_a_power_failure_are_removed_like_a_torn_line() {
        let (folder, path) = folder_with(3, 2);
        append(&path, &[0; 512]);
        assert_eq!(truncate(folder.path(), 3, 2).unwrap().len(), 2);
        append(&path, b"\0\0\0\n");
        assert_eq!(lines_of(&path).unwrap().len(), 2);
    }

    /// A file of two steps, a damaged line, and two more steps.
    fn damaged(rank: usize) -> (tempfile::TempDir, PathBuf) {
        let (folder, path) = folder_with(rank, 2);
        let good = fs::read(&path).unwrap();
        append(&path, b"{\"step\": 3}\n");
        append(&path, &good);
        (folder, path)
    }

    #[test]
    fn a_damaged_line_in_the_middle_is_an_error_with_its_number() {
        let (folder, path) = damaged(0);
        let error = lines_of(&path).unwrap_err().to_string();
        assert!(error.contains("r000000.jsonl, line 3: expected one step as JSON"), "{error}");
        assert_eq!(read_steps(&path).unwrap().map_while(Result::ok).count(), 2);
        let error = truncate(folder.path(), 0, 3).unwrap_err().to_string();
        assert!(error.contains("line 3"), "a step of the checkpoint is damaged: {error}");
        let kept = truncate(folder.path(), 0, 2).unwrap();
        assert_eq!(kept.len(), 2, "no durable step is lost");
        assert_eq!(lines_of(&path).unwrap().len(), 2);
    }

    #[test]
    fn missing_losses_are_an_error_and_nothing_is_truncated() {
        let (folder, path) = folder_with(0, 5);
        let whole = fs::read(&path).unwrap();
        let lost = |found: u64| {
            let error = truncate(folder.path(), 0, 6).unwrap_err().to_string();
            assert!(error.contains("expected the 6 steps"), "{error}");
            assert!(error.contains(&format!("found {found} without")), "{error}");
        };
        lost(5);
        let second = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        fs::write(&path, &whole[second..]).unwrap();
        lost(0);
        assert_eq!(fs::read(&path).unwrap(), whole[second..]);
        fs::remove_file(&path).unwrap();
        lost(0);
    }

    #[test]
    fn damage_on_other_ranks_is_truncated_and_copied() {
        let (folder, path) = damaged(3);
        let whole = fs::read(&path).unwrap();
        assert_eq!(truncate(folder.path(), 3, 20).unwrap().len(), 2);
        assert_eq!(lines_of(&path).unwrap().len(), 2);
        let copy = folder.path().join("steps/r000003.20.damaged");
        assert_eq!(fs::read(copy).unwrap(), whole);
    }
}
