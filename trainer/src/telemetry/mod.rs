//! Records and prints each step without slowing it down.
//!
//! The training thread copies a [`StepSample`] into a queue that was allocated at the start; the
//! telemetry thread formats, prints and writes it. The training thread neither allocates nor
//! formats nor does I/O.
//!
//! How events are reported:
//!
//! - **Steps.** `run/attempt.rs` calls [`Telemetry::step`] on every rank. The telemetry thread
//!   (`run` below) appends the step to the rank's step file (`record/steps/file.rs`), prints it on
//!   rank 0 (`step_printer.rs`), and keeps it. [`Telemetry::finish`] returns all steps to
//!   `run/session.rs`; `run/recorder.rs` computes the figures of the record from them.
//! - **Start, notes, end, errors.** `run/console.rs` writes them to stderr directly.
//! - **Warnings.** `tracing`; `cli/train.rs` installs the subscriber. Those that belong in the
//!   record are also collected as anomalies, by `checkpoints/mod.rs` and `run/recorder.rs`.
//!
//! There is no trait for exporters. A new one for steps is a file next to `step_printer.rs`, with a
//! method that takes each [`StepLine`]: [`Telemetry::start_on`] creates it from
//! [`TelemetryOptions`], and `run` calls it after the step file. It must not
//! block for long, because a save waits until the steps before it are written, and its errors must
//! not end the run. Its keys go into `TelemetryConfig`
//! (`config/mod.rs`); `run/session.rs` copies them to the options. An exporter that needs the start
//! and the end of a run as well is called where `run/session.rs` calls `Console`.

mod options;
mod step_printer;

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use options::{LogFormat, TelemetryOptions};

use crate::record::steps::file::StepFile;
use crate::record::{Error, StepLine, StepSample, StepSeries, steps_path, truncate_after};
use checkpoint::durable::{IoError, create_folders};
use step_printer::StepPrinter;

/// Steps that fit in the queue between training and telemetry.
const QUEUE_STEPS: usize = 4096;

/// An element of the queue.
#[derive(Debug)]
enum Message {
    Step(StepSample),
    /// Makes every step before it durable, and returns the error.
    Sync(SyncSender<Result<(), String>>),
    End,
}

/// The training thread's end of the queue.
#[derive(Debug)]
pub struct Telemetry {
    queue: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<Result<Vec<StepSample>, Error>>>,
    world: usize,
    delayed_steps: AtomicU64,
}

impl Telemetry {
    /// Truncates this rank's steps to `completed_steps` and starts the telemetry thread.
    ///
    /// # Errors
    /// [`Error`] when the file of steps cannot be created, truncated or read.
    pub fn start(options: TelemetryOptions) -> Result<Self, Error> {
        let is_terminal = std::io::stderr().is_terminal();
        Self::start_on(options, Box::new(std::io::stderr()), is_terminal)
    }

    /// The same with another output than stderr.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_on(
        options: TelemetryOptions,
        out: Box<dyn Write + Send>,
        is_terminal: bool,
    ) -> Result<Self, Error> {
        let steps = options.dir.join("steps");
        create_folders(&steps)?;
        let path = steps_path(&options.dir, options.rank);
        let earlier = truncate_after(&options.dir, options.rank, options.completed_steps)?;
        let file = StepFile::open(&options.dir, options.rank)?;
        let printer = (options.rank == 0).then(|| StepPrinter::new(&options, out, is_terminal));
        let (queue, receiver) = mpsc::sync_channel(QUEUE_STEPS);
        let rank = options.rank;
        let thread = std::thread::Builder::new()
            .name("telemetry".to_owned())
            .spawn(move || run(rank, &receiver, file, printer, earlier))
            .map_err(IoError::at(&path, "start the telemetry thread for"))?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            world: options.world,
            delayed_steps: AtomicU64::new(0),
        })
    }

    /// Records one step. Allocates nothing and returns at once, unless the queue is full because
    /// the disk has blocked for thousands of steps: then it waits, and counts the delay.
    ///
    /// # Panics
    /// When the phases do not add up to the wall time.
    pub fn step(&self, sample: StepSample) {
        assert_eq!(sample.phases.wall_ns(), sample.wall_ns, "phases do not add up to wall time");
        let Some(queue) = &self.queue else { return };
        let mut delayed = false;
        while let Err(TrySendError::Full(_)) = queue.try_send(Message::Step(sample)) {
            delayed = true;
            std::thread::sleep(Duration::from_millis(1));
        }
        self.delayed_steps.fetch_add(u64::from(delayed), Ordering::Relaxed);
    }

    /// What waits until every step so far is durable, so that a checkpoint never has more steps
    /// than the files. Another thread may call it.
    ///
    /// # Errors
    /// Why steps cannot be written; [`finish`](Self::finish) returns the error too.
    pub fn sync(&self) -> impl FnOnce() -> Result<(), String> + Send + use<> {
        let queue = self.queue.clone();
        let ended = || "the telemetry thread ended".to_owned();
        move || {
            let (answer, answered) = mpsc::sync_channel(1);
            let queue = queue.ok_or_else(ended)?;
            queue.send(Message::Sync(answer)).map_err(|_| ended())?;
            answered.recv().map_err(|_| ended())?
        }
    }

    /// Waits until every step is written and durable, and returns all steps of the run on this
    /// rank, those of earlier attempts included.
    ///
    /// # Errors
    /// [`Error::Io`] when a step could not be written.
    ///
    /// # Panics
    /// When the telemetry thread panicked.
    pub fn finish(mut self) -> Result<StepSeries, Error> {
        let samples = self.join().expect("joined once")?;
        let delayed_steps = self.delayed_steps.load(Ordering::Relaxed);
        Ok(StepSeries { world: self.world, samples, delayed_steps })
    }

    fn join(&mut self) -> Option<Result<Vec<StepSample>, Error>> {
        self.end();
        let thread = self.thread.take()?;
        Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Telemetry {
    /// Ends the thread, also while a save that hangs keeps the queue open.
    fn end(&mut self) {
        if let Some(queue) = self.queue.take() {
            drop(queue.send(Message::End)); // without a receiver it has ended already
        }
    }
}

/// A failed run still writes its steps.
impl Drop for Telemetry {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // there is no caller to return an error to
        }
    }
}

fn run(
    rank: usize,
    queue: &Receiver<Message>,
    mut file: StepFile,
    mut printer: Option<StepPrinter>,
    mut samples: Vec<StepSample>,
) -> Result<Vec<StepSample>, Error> {
    for message in queue {
        let sample = match message {
            Message::Step(sample) => sample,
            Message::Sync(answer) => {
                let _ = answer.send(file.sync().map_err(|error| error.to_string()));
                continue;
            }
            Message::End => break,
        };
        let line = StepLine::now(rank, sample);
        if let Err(error) = file.append(&line) {
            tracing::warn!("steps are kept in memory until the next save: {error}");
        }
        if let Some(printer) = &mut printer {
            printer.step(&line);
        }
        samples.push(sample);
    }
    drop(printer); // removes the progress bar
    file.sync().map(|()| samples)
}

#[cfg(test)]
mod tests;
