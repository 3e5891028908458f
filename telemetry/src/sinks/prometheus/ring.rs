//! The events of one rank in shared memory, for the exporter of its node.
//!
//! A ring of fixed records in a file of `/dev/shm`, written and read by system calls: a reader
//! during a write finds a wrong digest, and reads the record again later.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use record::files::Mode;
use record::files::regular_file::{create_anew, open_to_read};
use serde::{Deserialize, Serialize};

use crate::event::{Event, WrongValues};
use crate::hardware::Readings;
use record::{CheckpointSaved, Corrupted, Corruption, StepLine, Straggler};

/// Event that changes a metric, sent to the exporter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum MetricEvent {
    Step(StepLine),
    Checkpoint(CheckpointSaved),
    Warning,
    Verdict(Straggler),
    Corruption { rank: Option<usize>, what: Corrupted },
    Hardware(Readings),
}

impl MetricEvent {
    /// Returns the part of an event that changes a metric, if any.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        match event {
            Event::Step(line) => Some(Self::Step(*line)),
            Event::Checkpoint(saved) => Some(Self::Checkpoint(saved.clone())),
            Event::Warning(_) => Some(Self::Warning),
            Event::Verdict(verdict) => Some(Self::Verdict(verdict.straggler)),
            Event::Corruption(WrongValues { finding: Corruption { rank, what, .. }, .. }) => {
                Some(Self::Corruption { rank: *rank, what: *what })
            }
            Event::Hardware(readings) => Some(Self::Hardware(readings.clone())),
            Event::Start(_)
            | Event::FirstStep(_)
            | Event::Note(_)
            | Event::Stop(_)
            | Event::HardwareMissing(_)
            | Event::End(_) => None,
        }
    }
}

/// Number of bytes of a record.
const RECORD_BYTES: usize = 2048;

/// Number of records of a ring: enough for the events of some seconds in which the exporter does
/// not read.
const RECORDS: u64 = 256;

/// Number of bytes of digest and length, before the content of a record.
const HEAD_BYTES: usize = 16;

/// Returns the path of a rank's ring, in memory if possible.
pub(super) fn path(run: &str, local_rank: usize) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    folder.join(format!("yardstick-{run}-{local_rank}"))
}

/// Writing end of a ring, on its rank.
#[derive(Debug)]
pub(super) struct Writer {
    file: File,
    next: u64,
}

impl Writer {
    /// Creates a ring; replaces one that a killed process has left.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = create_anew(path, Mode::Owner).map_err(|error| error.source)?;
        Ok(Self { file, next: 0 })
    }

    /// Writes the next record over the oldest.
    pub(super) fn write(&mut self, event: &MetricEvent) -> io::Result<()> {
        let content = serde_json::to_vec(event).expect("plain data in memory");
        assert!(content.len() <= RECORD_BYTES - HEAD_BYTES, "an event fits into its record");
        let mut record = [0; RECORD_BYTES];
        record[8..HEAD_BYTES].copy_from_slice(&(content.len() as u64).to_le_bytes());
        record[HEAD_BYTES..HEAD_BYTES + content.len()].copy_from_slice(&content);
        let digest = digest(self.next, &record[8..]);
        record[..8].copy_from_slice(&digest);
        self.file.write_all_at(&record, offset(self.next))?;
        self.next += 1;
        Ok(())
    }
}

fn offset(number: u64) -> u64 {
    number % RECORDS * RECORD_BYTES as u64
}

/// Digest of the content and of its number, so that an older record in the same place does not
/// match.
fn digest(number: u64, content: &[u8]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&number.to_le_bytes()).update(content);
    *hasher.finalize().as_bytes().first_chunk().expect("a digest has 32 bytes")
}

/// Reading end of a ring, in the exporter.
#[derive(Debug)]
pub(super) struct Reader {
    path: PathBuf,
    file: Option<File>,
    next: u64,
}

impl Reader {
    /// Creates the reader of a ring that its rank may not have created yet.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None, next: 0 }
    }

    /// Passes every record since the last call to `take`, and returns the number of records that
    /// were overwritten before they were read.
    pub(super) fn read(&mut self, mut take: impl FnMut(MetricEvent)) -> u64 {
        if self.file.is_none() {
            self.file = open_to_read(&self.path).ok();
            if self.file.is_some() {
                drop(fs::remove_file(&self.path)); // so that a kill leaves no file
            }
        }
        let mut lost = 0;
        loop {
            if let Some(event) = self.record(self.next) {
                self.next += 1;
                take(event);
            } else if let Some(newer) = (1..=RECORDS).find(|&n| self.is_written(self.next + n)) {
                lost += newer;
                self.next += newer;
            } else {
                return lost;
            }
        }
    }

    fn is_written(&self, number: u64) -> bool {
        self.record(number).is_some()
    }

    fn record(&self, number: u64) -> Option<MetricEvent> {
        let mut record = [0; RECORD_BYTES];
        self.file.as_ref()?.read_exact_at(&mut record, offset(number)).ok()?;
        if record[..8] != digest(number, &record[8..]) {
            return None;
        }
        let length = u64::from_le_bytes(*record[8..].first_chunk()?) as usize;
        serde_json::from_slice(record.get(HEAD_BYTES..HEAD_BYTES + length)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::fixtures::sample;

    fn step(number: u64) -> MetricEvent {
        MetricEvent::Step(StepLine { unix_ms: number, rank: 3, sample: sample(1, number) })
    }

    fn read(reader: &mut Reader) -> (Vec<MetricEvent>, u64) {
        let mut found = Vec::new();
        let lost = reader.read(|event| found.push(event));
        (found, lost)
    }

    #[test]
    fn every_record_is_read_once_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        let mut reader = Reader::new(path.clone());
        assert_eq!(read(&mut reader), (vec![], 0), "nothing is there yet");
        let mut writer = Writer::create(&path).unwrap();
        (1..=3).for_each(|number| writer.write(&step(number)).unwrap());
        assert_eq!(read(&mut reader), (vec![step(1), step(2), step(3)], 0));
        writer.write(&MetricEvent::Warning).unwrap();
        assert_eq!(read(&mut reader), (vec![MetricEvent::Warning], 0));
        for round in 0..3 {
            (0..RECORDS).for_each(|number| writer.write(&step(round * RECORDS + number)).unwrap());
            assert_eq!(read(&mut reader).0.len() as u64, RECORDS);
        }
    }

    #[test]
    fn what_was_overwritten_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        let mut writer = Writer::create(&path).unwrap();
        (0..RECORDS + 10).for_each(|number| writer.write(&step(number)).unwrap());
        let (found, lost) = read(&mut Reader::new(path));
        assert_eq!((found.len() as u64, lost), (RECORDS, 10));
        assert_eq!(found[0], step(10));
    }

    #[test]
    fn a_record_that_is_being_written_is_read_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        let mut writer = Writer::create(&path).unwrap();
        writer.write(&step(1)).unwrap();
        let whole = fs::read(&path).unwrap();
        writer.file.write_all_at(&[0; RECORD_BYTES - 100], 100).unwrap();
        let mut reader = Reader::new(path.clone());
        assert_eq!(read(&mut reader), (vec![], 0));
        assert!(!path.exists(), "nothing is left over when both are killed");
        writer.file.write_all_at(&whole, 0).unwrap();
        assert_eq!(read(&mut reader), (vec![step(1)], 0));
    }
}
