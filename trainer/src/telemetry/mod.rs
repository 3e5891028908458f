//! Tells of each step, without slowing it down.
//!
//! The training thread copies a [`StepSample`] into a queue that was allocated at the start; a
//! thread of its own formats, prints and writes. Nothing on the training thread allocates, formats
//! or does I/O.

mod console;
mod file;
mod sample;
mod series;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use console::LogFormat;
pub use file::{read_sound_steps, read_steps, steps_path, truncate_after};
pub use sample::{StepLine, StepSample};
pub use series::StepSeries;

use crate::record::Error;
use console::Console;
use file::StepFile;

/// Steps that fit in the queue between training and telemetry.
const QUEUE_STEPS: usize = 4096;

/// What telemetry needs to know of a run.
#[derive(Debug, Clone)]
pub struct TelemetryOptions {
    /// The run's folder; steps go to its folder `steps`.
    pub dir: PathBuf,
    /// This rank; only rank 0 prints.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// For people or for machines.
    pub log_format: LogFormat,
    /// Steps of the whole run, for the progress bar.
    pub total_steps: u64,
    /// Steps that the checkpoint holds from which this attempt starts; 0 starts afresh.
    pub completed_steps: u64,
    /// People see every n-th step (and the first, the last, and those with an evaluation).
    pub log_every_steps: u64,
}

/// What travels in the queue.
#[derive(Debug)]
enum Message {
    Step(StepSample),
    /// Every step before this one is to be durable; the answer says what is in the way.
    Sync(SyncSender<Result<(), String>>),
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
    /// Cuts this rank's steps back to `completed_steps` and starts the telemetry thread.
    ///
    /// # Errors
    /// [`Error`] when the file of steps cannot be made, cut or read.
    pub fn start(options: TelemetryOptions) -> Result<Self, Error> {
        let terminal = std::io::stderr().is_terminal();
        Self::start_on(options, Box::new(std::io::stderr()), terminal)
    }

    /// The same with another place to print to, which is a terminal or not.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_on(
        options: TelemetryOptions,
        out: Box<dyn Write + Send>,
        terminal: bool,
    ) -> Result<Self, Error> {
        let steps = options.dir.join("steps");
        std::fs::create_dir_all(&steps).map_err(Error::io("create", &steps))?;
        let path = steps_path(&options.dir, options.rank);
        let earlier = truncate_after(&options.dir, options.rank, options.completed_steps)?;
        let file = StepFile::open(&options.dir, options.rank)?;
        let console = (options.rank == 0).then(|| Console::new(&options, out, terminal));
        let (queue, receiver) = mpsc::sync_channel(QUEUE_STEPS);
        let rank = options.rank;
        let thread = std::thread::Builder::new()
            .name("telemetry".to_owned())
            .spawn(move || run(rank, &receiver, file, console, earlier))
            .map_err(Error::io("start the telemetry thread for", &path))?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            world: options.world,
            delayed_steps: AtomicU64::new(0),
        })
    }

    /// Hands over one step. Allocates nothing and returns at once, unless the queue is full
    /// because the disk has been hanging for thousands of steps: then it waits, and counts that.
    ///
    /// # Panics
    /// When the phases do not add up to the wall time, which is a mistake of the caller.
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

    /// Waits until every step so far is durable, so that a checkpoint never knows more steps than
    /// the files do.
    ///
    /// # Errors
    /// Why steps cannot be written; [`finish`](Self::finish) says it again.
    pub fn sync(&self) -> Result<(), String> {
        let (answer, answered) = mpsc::sync_channel(1);
        let ended = || "the telemetry thread ended".to_owned();
        let queue = self.queue.as_ref().ok_or_else(ended)?;
        queue.send(Message::Sync(answer)).map_err(|_| ended())?;
        answered.recv().map_err(|_| ended())?
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
        drop(self.queue.take()); // the thread ends when the queue does
        let thread = self.thread.take()?;
        Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

/// A run that fails still leaves the steps it made.
impl Drop for Telemetry {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // nobody is left to tell
        }
    }
}

fn run(
    rank: usize,
    queue: &Receiver<Message>,
    mut file: StepFile,
    mut console: Option<Console>,
    mut samples: Vec<StepSample>,
) -> Result<Vec<StepSample>, Error> {
    for message in queue {
        let sample = match message {
            Message::Step(sample) => sample,
            Message::Sync(answer) => {
                let _ = answer.send(file.sync().map_err(|error| error.to_string()));
                continue;
            }
        };
        let line = StepLine::now(rank, sample);
        if let Err(error) = file.append(&line) {
            tracing::warn!("steps are not written until the next save: {error}");
        }
        if let Some(console) = &mut console {
            console.step(&line);
        }
        samples.push(sample);
    }
    drop(console); // takes the progress bar away
    file.sync().map(|()| samples)
}

#[cfg(test)]
pub(crate) mod tests;
