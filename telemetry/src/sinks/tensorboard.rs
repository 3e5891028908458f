//! The sink of TensorBoard: a file of events in the run's folder, on rank 0.
//!
//! The file is a sequence of records, each the protocol buffer `Event` of TensorFlow behind its
//! length, and checksums of both (`tensorflow/core/lib/io/record_writer.h`). Few fields of that
//! message are written, so the encoding is here.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crc_fast::CrcAlgorithm;
use record::files::regular_file::create_anew;
use record::files::{IoError, Mode, create_folders};

use crate::event::Event;
use crate::sink::Sink;
use record::StepLine;
use record::phase::Phase;

/// Longest time between flushes of steps.
const FLUSH_INTERVAL: Duration = Duration::from_secs(2);

/// Writes scalars of each step.
#[derive(Debug)]
pub(crate) struct TensorBoard {
    path: PathBuf,
    /// Output; `None` after an error.
    out: Option<BufWriter<File>>,
    flushed: Instant,
}

impl TensorBoard {
    /// Creates the file of an attempt in `DIR/tensorboard`.
    ///
    /// # Errors
    /// When it cannot be created.
    pub(crate) fn create(dir: &Path, attempt: u32) -> Result<Self, IoError> {
        let folder = dir.join("tensorboard");
        create_folders(&folder, Mode::Run)?;
        // Readers take files with `tfevents` in their names, in the order of names: attempts have
        // an order, the clocks of the hosts that they run on do not.
        let path = folder.join(format!("events.out.tfevents.attempt-{attempt:06}"));
        let mut out = BufWriter::new(create_anew(&path, Mode::Run)?);
        let first = record(&Message::event(SystemTime::now()).string(3, "brain.Event:2").0);
        out.write_all(&first).map_err(IoError::at(&path, "write"))?;
        Ok(Self { path, out: Some(out), flushed: Instant::now() })
    }

    fn write(&mut self, message: &Message, flush: bool) {
        let Some(out) = &mut self.out else { return };
        let mut write = || {
            out.write_all(&record(&message.0))?;
            if flush { out.flush() } else { Ok(()) }
        };
        if let Err(error) = write() {
            let path = self.path.display();
            tracing::warn!("no further events for TensorBoard: {path}: {error}");
            self.out = None;
        }
    }

    fn step(&mut self, line: &StepLine) {
        let sample = &line.sample;
        let ms = |ns: u64| ns as f64 / 1e6;
        let step_ns = sample.phases.step_ns();
        let mut scalars = vec![
            ("train/loss".to_owned(), sample.loss),
            ("train/gradient_norm".to_owned(), sample.gradient_norm),
            ("train/learning_rate".to_owned(), sample.learning_rate),
            ("speed/tokens_per_second".to_owned(), sample.tokens as f64 * 1e9 / step_ns as f64),
            ("speed/step_ms".to_owned(), ms(step_ns)),
            ("communication/total_ms".to_owned(), ms(sample.comm_total_ns)),
            ("communication/hidden_ms".to_owned(), ms(sample.comm_hidden_ns)),
        ];
        let optional = [
            ("eval/loss", sample.evaluation_loss),
            ("train/parameter_norm", sample.parameter_norm),
            ("train/update_ratio", sample.update_ratio),
            ("train/loss_zscore", sample.loss_z),
        ];
        scalars.extend(optional.into_iter().filter_map(|(tag, it)| Some((tag.to_owned(), it?))));
        let phase = |phase: Phase| (format!("phase_ms/{}", phase.name()), sample.phases.get(phase));
        scalars.extend(Phase::ALL.map(phase).map(|(name, ns)| (name, ms(ns))));
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(line.unix_ms);
        let mut summary = Message::default();
        for (tag, value) in scalars {
            let value = Message::default().string(1, &tag).float(2, value as f32);
            summary = summary.message(1, &value);
        }
        let event = Message::event(time).integer(2, sample.step).message(5, &summary);
        let flush = self.flushed.elapsed() >= FLUSH_INTERVAL;
        self.write(&event, flush);
        if flush {
            self.flushed = Instant::now();
        }
    }
}

impl Sink for TensorBoard {
    /// Makes readers forget steps of earlier attempts that this attempt repeats.
    fn begin_steps(&mut self, completed_steps: u64) {
        let start = Message::default().integer(1, 1); // SessionLog, status START
        let event = Message::event(SystemTime::now()).integer(2, completed_steps + 1);
        self.write(&event.message(7, &start), true);
    }

    fn take(&mut self, event: &Event) {
        if let Event::Step(line) = event {
            self.step(line);
        }
    }

    fn end_steps(&mut self) {
        if let Some(Err(error)) = self.out.as_mut().map(BufWriter::flush) {
            tracing::warn!("TensorBoard's events: {}: {error}", self.path.display());
        }
    }
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A protocol buffer in its wire format (protobuf.dev/programming-guides/encoding).
#[derive(Debug, Clone, Default)]
struct Message(Vec<u8>);

impl Message {
    /// Creates an `Event` of some time.
    fn event(time: SystemTime) -> Self {
        let mut message = Self::default();
        message.key(1, 1);
        message.0.extend(unix_seconds(time).to_le_bytes());
        message
    }

    /// Appends the number of a field and the encoding of its value.
    fn key(&mut self, field: u64, wire_type: u64) {
        self.variable(field << 3 | wire_type);
    }

    fn variable(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.key(field, 2);
        self.variable(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn string(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u64, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    fn integer(mut self, field: u64, number: u64) -> Self {
        self.key(field, 0);
        self.variable(number);
        self
    }

    fn float(mut self, field: u64, number: f32) -> Self {
        self.key(field, 5);
        self.0.extend(number.to_le_bytes());
        self
    }
}

/// Encodes a record with this content.
fn record(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    let mut bytes = Vec::with_capacity(content.len() + 16);
    bytes.extend(length);
    bytes.extend(masked_checksum(&length).to_le_bytes());
    bytes.extend(content);
    bytes.extend(masked_checksum(content).to_le_bytes());
    bytes
}

/// CRC-32C, rotated and offset, so that checksums of data with checksums in it are not regular
/// (`tensorflow/core/lib/hash/crc32c.h`).
fn masked_checksum(bytes: &[u8]) -> u32 {
    let checksum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}
