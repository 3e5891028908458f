//! The stream of events of a rank, and the thread that serves its sinks.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::Duration;

use device::threads;
use record::files::IoError;
use record::hardware::RankHardware;
use record::{Anomaly, CheckpointSaved, Error, StartParts, StepLine, StepSample, StepSeries};

use crate::event::{Event, RunEnd, StopRequest, Verdict};
use crate::hardware::{Missing, Readings};
use crate::log_lines;
use crate::options::TelemetryOptions;
use crate::sink::Sink;
use crate::sinks::{
    Anomalies, Console, Hardware, Otlp, Prometheus, StepLog, StepLogOptions, StepsBefore,
    TensorBoard,
};

/// Events that fit in the queue between training and telemetry.
const QUEUE_EVENTS: usize = 4096;

/// How long a warning waits until it is told.
const TOLD_WITHIN: Duration = Duration::from_millis(200);

/// An element of the queue.
#[allow(clippy::large_enum_variant, reason = "most are steps, and they fill a fixed queue")]
enum Message {
    Event {
        event: Event,
        /// The step that was made when it was told.
        step: Option<u64>,
    },
    BeginSteps {
        log: Box<StepLog>,
        completed_steps: u64,
    },
    /// Makes every step before it durable, and returns the error.
    Sync(SyncSender<Result<(), String>>),
    EndSteps(SyncSender<Result<StepSeries, Error>>),
    /// Answers when every event before it has been told.
    Told(SyncSender<()>),
    /// Returns all warnings before it.
    Anomalies(SyncSender<Vec<Anomaly>>),
    /// Returns what the hardware did; with its course over time or without.
    Hardware(SyncSender<RankHardware>, bool),
    /// The run stops before its end.
    Interrupt,
    End,
}

impl Message {
    /// An event that is told now: when it is printed, another step may be made.
    fn told(event: Event) -> Self {
        Self::Event { event, step: log_lines::step() }
    }
}

/// The stream of events of one rank, and the thread that serves its sinks.
#[derive(Debug)]
pub struct Telemetry {
    events: Events,
    options: TelemetryOptions,
    thread: Option<JoinHandle<()>>,
}

/// Where events are told. Cheap to clone, for any thread.
#[derive(Debug, Clone)]
pub struct Events {
    rank: usize,
    queue: SyncSender<Message>,
    delayed_steps: Arc<AtomicU64>,
}

impl Telemetry {
    /// Starts the telemetry thread.
    ///
    /// # Errors
    /// [`Error::Io`] when the thread cannot be started.
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
        let console = Console::new(options.clone(), out, is_terminal);
        let mut sinks: Vec<Box<dyn Sink>> = vec![Box::new(console)];
        let prometheus =
            options.prometheus.as_ref().map(|wanted| Prometheus::start(&options.dir, wanted));
        let mut note = None;
        let mut warnings = Vec::new();
        if let Some(attempt) = options.tensorboard.filter(|_| options.rank == 0) {
            match TensorBoard::create(&options.dir, attempt) {
                Ok(sink) => sinks.push(Box::new(sink)),
                Err(error) => warnings.push(format!("telemetry.tensorboard: no events: {error}")),
            }
        }
        if let Some(wanted) = &options.otlp {
            match Otlp::start(&options, wanted) {
                Ok(sink) => sinks.push(Box::new(sink)),
                Err(error) => warnings.push(format!("telemetry.otlp: nothing is sent: {error}")),
            }
        }
        match prometheus {
            Some(Ok(sink)) => {
                note = sink.address().map(|address| format!("metrics: http://{address}/metrics"));
                sinks.push(Box::new(sink));
            }
            Some(Err(error)) => {
                warnings.push(format!("telemetry.prometheus: no metrics of this rank: {error}"));
            }
            None => {}
        }
        let (queue, receiver) = mpsc::sync_channel(QUEUE_EVENTS);
        let thread = threads::spawn("telemetry", move || Sinks::new(sinks).serve(&receiver));
        let thread = thread.map_err(IoError::at(&options.dir, "log"))?;
        let events = Events { rank: options.rank, queue, delayed_steps: Arc::default() };
        if let Some(text) = note {
            events.note(text);
        }
        for text in warnings {
            events.warn(Anomaly { step: None, rank: Some(options.rank), text });
        }
        Ok(Self { events, options, thread: Some(thread) })
    }

    /// Where to tell events.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Truncates this rank's steps to those of the checkpoint that the attempt resumes from: steps
    /// follow.
    ///
    /// # Errors
    /// [`Error`] when the file of steps cannot be created, truncated or read.
    pub fn begin_steps(&self, options: &StepLogOptions) -> Result<StepsBefore, Error> {
        let TelemetryOptions { dir, rank, world, .. } = &self.options;
        let (log, before) = StepLog::open(dir, *rank, *world, options)?;
        let completed_steps = options.completed_steps;
        self.events.send(Message::BeginSteps { log: Box::new(log), completed_steps });
        Ok(before)
    }

    /// Waits until every step is written and durable, and returns all steps of the run on this
    /// rank, those of earlier attempts included.
    ///
    /// # Errors
    /// [`Error::Io`] when a step could not be written.
    ///
    /// # Panics
    /// When steps have not begun.
    pub fn finish_steps(&self) -> Result<StepSeries, Error> {
        log_lines::set_step(None);
        let mut series =
            self.events.ask(Message::EndSteps).expect("the telemetry thread serves")?;
        series.delayed_steps = self.events.delayed_steps.load(Ordering::Relaxed);
        Ok(series)
    }

    /// What the hardware did so far; with its course over time or without.
    pub fn hardware(&self, with_series: bool) -> RankHardware {
        let question = |answer| Message::Hardware(answer, with_series);
        self.events.ask(question).unwrap_or_default()
    }

    /// The run stops before its end, on request or after a failure: nothing is served after it.
    pub fn interrupt(&self) {
        self.events.send(Message::Interrupt);
    }

    /// All warnings so far.
    pub fn anomalies(&self) -> Vec<Anomaly> {
        self.events.ask(Message::Anomalies).unwrap_or_default()
    }
}

/// Tells what is still in the queue, also after a failure, and also while a save that hangs keeps
/// the queue open.
impl Drop for Telemetry {
    fn drop(&mut self) {
        self.events.send(Message::End);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Events {
    /// Training starts, or resumes.
    pub fn start(&self, text: impl Into<String>) {
        self.tell(Event::Start(text.into()));
    }

    /// A step begins: what is told and logged from now on happens while it is made.
    pub fn begin_step(&self, step: u64) {
        log_lines::set_step(Some(step));
    }

    /// The first step of the attempt is done.
    pub fn first_step(&self, parts: StartParts) {
        self.tell(Event::FirstStep(parts));
    }

    /// Something that the user may not expect. Only rank 0 shows it.
    pub fn note(&self, text: impl Into<String>) {
        self.tell(Event::Note(text.into()));
    }

    /// A flag applies to a step that an earlier attempt completed, and has no effect.
    pub fn note_completed_step(&self, flag: &str, step: u64) {
        self.note(format!("{flag}: no effect, step {step} was completed before"));
    }

    /// Something unusual, which rank 0 also records. Waits a moment until it is told: what a
    /// process warns of may be its last word.
    pub fn warn(&self, anomaly: Anomaly) {
        self.tell(Event::Warning(anomaly));
        self.await_delivery();
    }

    /// A signal asks the run to stop. Waits a moment as well, because the process may end after it;
    /// `false` where telemetry has ended.
    pub fn stop_requested(&self, request: &StopRequest) -> bool {
        self.tell(Event::Stop(request.clone()));
        self.await_delivery()
    }

    /// `false` where the telemetry thread has ended.
    fn await_delivery(&self) -> bool {
        let (answer, answered) = mpsc::sync_channel(1);
        self.send(Message::Told(answer));
        let delivered = answered.recv_timeout(TOLD_WITHIN);
        delivered != Err(RecvTimeoutError::Disconnected) // slow storage may keep the thread
    }

    /// The same without waiting, for the training thread.
    pub fn warn_later(&self, anomaly: Anomaly) {
        self.tell(Event::Warning(anomaly));
    }

    /// A rank is slow, or no longer is.
    pub fn verdict(&self, verdict: Verdict) {
        self.tell(Event::Verdict(verdict));
    }

    /// A piece of hardware was read.
    pub fn hardware(&self, readings: Readings) {
        self.tell(Event::Hardware(readings));
    }

    /// Some hardware cannot be read.
    pub fn hardware_missing(&self, missing: Missing) {
        self.tell(Event::HardwareMissing(missing));
    }

    /// A checkpoint is committed.
    pub fn committed(&self, saved: CheckpointSaved) {
        self.tell(Event::Checkpoint(saved));
    }

    /// The run ended.
    pub fn end(&self, end: RunEnd) {
        self.tell(Event::End(end));
    }

    fn tell(&self, event: Event) {
        self.send(Message::told(event));
    }

    /// Tells one step that has just ended. Allocates nothing and returns at once, unless the queue
    /// is full because the disk has blocked for thousands of steps: then it waits, and counts the
    /// delay.
    ///
    /// # Panics
    /// When the phases do not add up to the wall time.
    pub fn step(&self, sample: StepSample) {
        self.tell_step(StepLine::now(self.rank, sample));
    }

    /// The same for a step that ended at this Unix time in milliseconds.
    ///
    /// # Panics
    /// When the phases do not add up to the wall time.
    pub fn step_at(&self, sample: StepSample, unix_ms: u64) {
        self.tell_step(StepLine { unix_ms, rank: self.rank, sample });
    }

    fn tell_step(&self, line: StepLine) {
        let sample = &line.sample;
        assert_eq!(sample.phases.wall_ns(), sample.wall_ns, "phases do not add up to wall time");
        let mut message = Message::told(Event::Step(line));
        let mut delayed = false;
        while let Err(TrySendError::Full(full)) = self.queue.try_send(message) {
            message = full;
            delayed = true;
            std::thread::sleep(Duration::from_millis(1));
        }
        self.delayed_steps.fetch_add(u64::from(delayed), Ordering::Relaxed);
    }

    /// What waits until every step so far is durable, so that a checkpoint never has more steps
    /// than the files. Another thread may call it.
    ///
    /// # Errors
    /// Why steps cannot be written; [`Telemetry::finish_steps`] returns the error too.
    pub fn sync(&self) -> impl FnOnce() -> Result<(), String> + Send + use<> {
        let events = self.clone();
        move || events.ask(Message::Sync).ok_or("the telemetry thread ended")?
    }

    fn send(&self, message: Message) {
        let _ = self.queue.send(message); // without a receiver the run has ended
    }

    /// The answer of the telemetry thread; `None` if that has ended.
    fn ask<T>(&self, question: impl FnOnce(SyncSender<T>) -> Message) -> Option<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.queue.send(question(answer)).ok()?;
        answered.recv().ok()
    }
}

/// All sinks, on the telemetry thread.
struct Sinks {
    steps: Option<Box<StepLog>>,
    anomalies: Anomalies,
    hardware: Hardware,
    others: Vec<Box<dyn Sink>>,
}

impl Sinks {
    fn new(others: Vec<Box<dyn Sink>>) -> Self {
        Self { steps: None, anomalies: Anomalies::default(), hardware: Hardware::default(), others }
    }

    fn serve(mut self, queue: &Receiver<Message>) {
        for message in queue {
            // Whoever asked may have ended.
            match message {
                Message::Event { event, step } => {
                    self.others.iter_mut().for_each(|sink| sink.set_step(step));
                    self.take(&event);
                }
                Message::BeginSteps { log, completed_steps } => {
                    self.steps = Some(log);
                    self.others.iter_mut().for_each(|sink| sink.begin_steps(completed_steps));
                }
                Message::Sync(answer) => {
                    let synced = self.steps.as_mut().map_or(Ok(()), |steps| steps.sync());
                    let _ = answer.send(synced.map_err(|error| error.to_string()));
                }
                Message::EndSteps(answer) => {
                    self.others.iter_mut().for_each(|sink| sink.end_steps());
                    let steps = self.steps.take().expect("steps have begun");
                    let _ = answer.send(steps.finish());
                }
                Message::Told(answer) => {
                    let _ = answer.send(());
                }
                Message::Anomalies(answer) => {
                    let _ = answer.send(self.anomalies.all());
                }
                Message::Hardware(answer, with_series) => {
                    let _ = answer.send(self.hardware.summarize(with_series));
                }
                Message::Interrupt => self.others.iter_mut().for_each(|sink| sink.interrupt()),
                Message::End => break,
            }
        }
        // A run that fails still writes its steps; there is no caller to return an error to.
        drop(self.steps.take().map(|steps| steps.finish()));
    }

    fn take(&mut self, event: &Event) {
        if let Some(steps) = &mut self.steps {
            steps.take(event);
        }
        self.anomalies.take(event);
        self.hardware.take(event);
        self.others.iter_mut().for_each(|sink| sink.take(event));
    }
}

#[cfg(test)]
mod tests;
