//! `DIR/steps/rRRRRRR.jsonl`: one JSON object per step, one file per rank, in the order of steps.
//!
//! Each line is one `write`, so a killed process leaves whole lines; a lost machine may leave
//! damage behind the last step that was made durable, which a resumed run cuts off.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::sample::{StepLine, StepSample};
use crate::record::{Error, atomic};

/// Where a rank's steps are, in a run's folder.
pub fn steps_path(dir: &Path, rank: usize) -> PathBuf {
    dir.join("steps").join(format!("r{rank:06}.jsonl"))
}

/// Cuts the file of a rank's steps back to the first `completed_steps` and returns them.
///
/// Everything after them goes, a torn last line too. A file that does not exist has no steps.
/// Steps that are damaged or missing are an error on rank 0 alone, whose losses are the run's. On
/// another rank they are times of earlier attempts, perhaps of another world size: damage is a
/// warning, and a copy of the damaged file stays beside it.
///
/// # Errors
/// [`Error::Io`], and on rank 0 [`Error::Malformed`] and [`Error::LostSteps`].
pub fn truncate_after(
    dir: &Path,
    rank: usize,
    completed_steps: u64,
) -> Result<Vec<StepSample>, Error> {
    let path = &steps_path(dir, rank);
    let bytes = read_if_present(path)?.unwrap_or_default();
    let (lines, damage) = parse(path, &bytes);
    let last = lines.last().map_or(0, |parsed| parsed.line.sample.step);
    if let Some(damage) = damage.filter(|_| last < completed_steps) {
        if rank == 0 {
            return Err(damage);
        }
        let aside = path.with_extension(format!("{completed_steps}.damaged"));
        match atomic::write(&aside, &bytes) {
            Ok(()) => tracing::warn!("{damage}; the steps after it are in {}", aside.display()),
            Err(error) => tracing::warn!("{damage}; the steps after it are lost: {error}"),
        }
    }
    let kept: Vec<Parsed> =
        lines.into_iter().take_while(|it| it.line.sample.step <= completed_steps).collect();
    let in_order = kept.iter().zip(1..).take_while(|(it, step)| it.line.sample.step == *step);
    let found = in_order.count() as u64;
    if rank == 0 && found < completed_steps {
        return Err(Error::LostSteps { path: path.clone(), expected: completed_steps, found });
    }
    let kept_bytes = kept.last().map_or(0, |parsed| parsed.end);
    if kept_bytes < bytes.len() {
        let file = OpenOptions::new().write(true).open(path).map_err(Error::io("open", path))?;
        file.set_len(kept_bytes as u64).map_err(Error::io("truncate", path))?;
        file.sync_all().map_err(Error::io("make durable", path))?;
    }
    Ok(kept.into_iter().map(|parsed| parsed.line.sample).collect())
}

/// The steps in a rank's file, without a torn last line; none without a file.
///
/// # Errors
/// [`Error::Io`], and [`Error::Malformed`] for a bad line that is not the last.
pub fn read_steps(path: &Path) -> Result<Vec<StepLine>, Error> {
    let Some(bytes) = read_if_present(path)? else { return Ok(Vec::new()) };
    let (lines, damage) = parse(path, &bytes);
    damage.map_or_else(|| Ok(lines.into_iter().map(|parsed| parsed.line).collect()), Err)
}

/// The steps before any damage in a rank's file; none without a file.
///
/// # Errors
/// [`Error::Io`].
pub fn read_sound_steps(path: &Path) -> Result<Vec<StepLine>, Error> {
    let bytes = read_if_present(path)?.unwrap_or_default();
    Ok(parse(path, &bytes).0.into_iter().map(|parsed| parsed.line).collect())
}

struct Parsed {
    line: StepLine,
    /// Offset of the byte after the line.
    end: usize,
}

fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

/// The steps up to a torn last line, or up to damage.
fn parse(path: &Path, bytes: &[u8]) -> (Vec<Parsed>, Option<Error>) {
    let mut lines = Vec::new();
    let mut end = 0;
    for text in bytes.split_inclusive(|&byte| byte == b'\n') {
        end += text.len();
        let is_last = end == bytes.len();
        if is_last && !text.ends_with(b"\n") {
            break; // torn, even if what is there happens to parse
        }
        match serde_json::from_slice::<StepLine>(text) {
            Ok(line) => lines.push(Parsed { line, end }),
            Err(_) if is_last => break,
            Err(source) => {
                let (path, line) = (path.to_owned(), lines.len() + 1);
                let damage = Error::Malformed { path, line, expected: "one step as JSON", source };
                return (lines, Some(damage));
            }
        }
    }
    (lines, None)
}

/// How much is kept until it is durable, some thousand steps.
const UNSYNCED_BYTES_MAX: usize = 1 << 20;

/// Appends steps; owned by the telemetry thread.
///
/// A write that fails loses nothing: what was not durable yet is kept, and written again by the
/// next [`StepFile::sync`], which comes by itself after [`UNSYNCED_BYTES_MAX`].
#[derive(Debug)]
pub(super) struct StepFile {
    path: PathBuf,
    file: File,
    /// Length of the part that is durable.
    durable_bytes: u64,
    /// The lines after it.
    text: Vec<u8>,
    /// Whether the file may not hold these lines.
    behind: bool,
}

impl StepFile {
    pub(super) fn open(dir: &Path, rank: usize) -> Result<Self, Error> {
        let path = steps_path(dir, rank);
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        let file = opened.map_err(Error::io("open", &path))?;
        atomic::sync_folder_of(&path)?; // the file's name is to be durable as well
        let length = file.metadata().map_err(Error::io("read the length of", &path))?.len();
        Ok(Self { path, file, durable_bytes: length, text: Vec::new(), behind: false })
    }

    /// Writes one line in one system call. Says once that it cannot; then waits for a sync.
    pub(super) fn append(&mut self, line: &StepLine) -> Result<(), Error> {
        let start = self.text.len();
        serde_json::to_writer(&mut self.text, line).expect("plain data in memory");
        self.text.push(b'\n');
        if self.behind {
            // That was told. Now and then it is tried again, as nobody else may for long.
            let is_due = self.text.len() / UNSYNCED_BYTES_MAX > start / UNSYNCED_BYTES_MAX;
            drop(is_due.then(|| self.sync()));
            return Ok(());
        }
        let written = self.file.write_all(&self.text[start..]);
        self.behind = written.is_err();
        written.map_err(Error::io("append to", &self.path))?;
        if self.text.len() > UNSYNCED_BYTES_MAX { self.sync() } else { Ok(()) }
    }

    /// Makes every step so far durable.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        if self.behind {
            self.file.set_len(self.durable_bytes).map_err(Error::io("truncate", &self.path))?;
            self.file.write_all(&self.text).map_err(Error::io("append to", &self.path))?;
        }
        // The system tells of a failed write-back once, and may have dropped what it was to write.
        self.behind = true;
        self.file.sync_data().map_err(Error::io("make durable", &self.path))?;
        self.durable_bytes += self.text.len() as u64;
        self.text.clear();
        self.behind = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::sample;
    use super::*;

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
        OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
    }

    #[test]
    fn steps_read_back_as_they_were() {
        let (_folder, path) = folder_with(3, 5);
        let expected: Vec<_> = (1..=5).map(|step| sample(1, step)).collect();
        let lines = read_steps(&path).unwrap();
        assert_eq!(lines.iter().map(|line| line.sample).collect::<Vec<_>>(), expected);
        assert!(lines.iter().all(|line| line.rank == 3 && line.unix_ms > 1_600_000_000_000));
        assert_eq!(read_steps(&path.with_extension("none")).unwrap(), []);
    }

    #[test]
    fn a_resumed_run_goes_on_behind_its_checkpoint() {
        let (folder, path) = folder_with(3, 9);
        assert_eq!(truncate_after(folder.path(), 3, 6).unwrap().len(), 6);
        let mut file = StepFile::open(folder.path(), 3).unwrap();
        file.append(&StepLine::now(3, sample(2, 7))).unwrap();
        let lines = read_steps(&path).unwrap();
        let found: Vec<_> =
            lines.iter().map(|line| (line.sample.attempt, line.sample.step)).collect();
        assert_eq!(found, [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 7)]);
        assert_eq!(truncate_after(folder.path(), 3, 0).unwrap(), []);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn a_disk_that_was_full_for_a_while_loses_no_step() {
        let (folder, path) = folder_with(3, 2);
        let mut file = StepFile::open(folder.path(), 3).unwrap();
        let append = |file: &mut StepFile, step| file.append(&StepLine::now(3, sample(1, step)));
        append(&mut file, 3).unwrap();
        file.sync().unwrap();
        append(&mut file, 4).unwrap();
        let writable = std::mem::replace(&mut file.file, File::open("/dev/full").unwrap());
        assert!(append(&mut file, 5).is_err());
        assert!(append(&mut file, 6).is_ok(), "told once");
        assert!(file.sync().is_err());
        file.file = writable;
        file.sync().unwrap();
        append(&mut file, 7).unwrap();
        file.sync().unwrap();
        let steps: Vec<u64> =
            read_steps(&path).unwrap().iter().map(|line| line.sample.step).collect();
        assert_eq!(steps, [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn what_is_kept_for_a_second_try_does_not_grow_for_ever() {
        let (folder, path) = folder_with(3, 0);
        let mut file = StepFile::open(folder.path(), 3).unwrap();
        for step in 1..=10_000 {
            file.append(&StepLine::now(3, sample(1, step))).unwrap();
            assert!(file.text.len() < UNSYNCED_BYTES_MAX + 1024);
        }
        assert!(file.durable_bytes > 0, "nobody asked for it");
        assert_eq!(read_steps(&path).unwrap().len(), 10_000);
    }

    #[test]
    fn a_torn_last_line_is_cut_off_wherever_it_is_torn() {
        let (folder, path) = folder_with(3, 3);
        let whole = fs::read(&path).unwrap();
        let second_ends =
            whole.len() - whole.iter().rev().skip(1).position(|&b| b == b'\n').unwrap() - 1;
        let lengths =
            (second_ends..whole.len()).step_by(23).chain([whole.len() - 2, whole.len() - 1]);
        for length in lengths {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(read_steps(&path).unwrap().len(), 2, "cut at {length}");
            assert_eq!(truncate_after(folder.path(), 3, 100).unwrap().len(), 2, "cut at {length}");
            assert_eq!(fs::read(&path).unwrap(), whole[..second_ends], "cut at {length}");
        }
    }

    #[test]
    fn blocks_of_zeros_after_a_power_loss_are_a_torn_line_too() {
        let (folder, path) = folder_with(3, 2);
        append(&path, &[0; 512]);
        assert_eq!(truncate_after(folder.path(), 3, 2).unwrap().len(), 2);
        append(&path, b"\0\0\0\n");
        assert_eq!(read_steps(&path).unwrap().len(), 2);
    }

    /// A file of two steps, a damaged line, and two more.
    fn damaged(rank: usize) -> (tempfile::TempDir, PathBuf) {
        let (folder, path) = folder_with(rank, 2);
        let good = fs::read(&path).unwrap();
        append(&path, b"{\"step\": 3}\n");
        append(&path, &good);
        (folder, path)
    }

    #[test]
    fn a_bad_line_in_the_middle_is_damage_and_is_named() {
        let (folder, path) = damaged(0);
        let error = read_steps(&path).unwrap_err().to_string();
        assert!(error.contains("r000000.jsonl, line 3: expected one step as JSON"), "{error}");
        assert_eq!(read_sound_steps(&path).unwrap().len(), 2);
        let error = truncate_after(folder.path(), 0, 3).unwrap_err().to_string();
        assert!(error.contains("line 3"), "a step of the checkpoint is damaged: {error}");
        let kept = truncate_after(folder.path(), 0, 2).unwrap();
        assert_eq!(kept.len(), 2, "all that was durable is there");
        assert_eq!(read_steps(&path).unwrap().len(), 2);
    }

    #[test]
    fn losses_that_are_missing_stop_a_resume_and_nothing_is_cut() {
        let (folder, path) = folder_with(0, 5);
        let whole = fs::read(&path).unwrap();
        let lost = |found: u64| {
            let error = truncate_after(folder.path(), 0, 6).unwrap_err().to_string();
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
    fn damage_to_another_rank_s_times_stops_no_resume_and_stays_beside() {
        let (folder, path) = damaged(3);
        let whole = fs::read(&path).unwrap();
        assert_eq!(truncate_after(folder.path(), 3, 20).unwrap().len(), 2);
        assert_eq!(read_steps(&path).unwrap().len(), 2);
        let aside = folder.path().join("steps/r000003.20.damaged");
        assert_eq!(fs::read(aside).unwrap(), whole);
    }
}
