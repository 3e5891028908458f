//! The stream of events of a rank, and the thread that serves its sinks.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::Duration;

use device::threads;
use record::files::IoError;
use record::{Anomaly, CheckpointSaved, Error, StartParts, StepLine, StepSample};

use crate::event::{Event, RunEnd, StopRequest, Verdict, WrongValues};
use crate::fact::Fact;
use crate::hardware::{Missing, Readings};
use crate::log_lines;
use crate::options::TelemetryOptions;
use crate::sink::Sink;
use crate::sinks::{
    Console, Otlp, Prometheus, RankSummary, RunRecord, StepLog, StepLogOptions, StepsBefore,
    SummaryOptions, TensorBoard,
};

/// Number of events that fit in the queue between training and telemetry.
const QUEUE_EVENTS: usize = 4096;

/// Longest wait for the delivery of a warning.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// Longest wait for the delivery of the answer to a request to stop, which may be the last word of
/// the process: on a busy machine the telemetry thread may wait for a core.
const STOP_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// An element of the queue.
#[allow(clippy::large_enum_variant, reason = "most are steps, and they fill a fixed queue")]
enum Message {
    Event {
        event: Event,
        /// Step during which it was emitted.
        step: Option<u64>,
    },
    /// A fact for the record; the answer reports that it is written.
    Fact(Fact, Option<SyncSender<Result<(), Error>>>),
    BeginSteps {
        log: Box<StepLog>,
        completed_steps: u64,
        repeated_ns: u64,
    },
    /// Makes all earlier steps durable, and returns the error.
    Sync(SyncSender<Result<(), String>>),
    EndSteps {
        options: SummaryOptions,
        delayed_steps: u64,
        answer: SyncSender<RankSummary>,
    },
    /// Answers when all earlier events have been delivered.
    Flush(SyncSender<()>),
    /// Interrupts the run before its end.
    Interrupt,
    End,
}

impl Message {
    /// Creates the message of an event that is emitted now: by the time it is printed, another step
    /// may run.
    fn emitted(event: Event) -> Self {
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

/// Handle to emit events. Cheap to clone, for any thread.
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

    /// Starts the telemetry thread, with another output than stderr.
    ///
    /// # Errors
    /// Same errors as [`start`](Self::start).
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
        let record = RunRecord::new(&options.dir, options.rank);
        let thread =
            threads::spawn("telemetry", move || Sinks { record, others: sinks }.serve(&receiver));
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

    /// Returns the handle to emit events.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Begins the steps: truncates this rank's steps to those of the checkpoint that the attempt
    /// resumes from.
    ///
    /// # Errors
    /// [`Error`] when the file of steps cannot be created, truncated or read.
    pub fn begin_steps(&self, options: &StepLogOptions) -> Result<StepsBefore, Error> {
        let TelemetryOptions { dir, rank, world, .. } = &self.options;
        let (log, before) = StepLog::open(dir, *rank, *world, options)?;
        self.events.send(Message::BeginSteps {
            log: Box::new(log),
            completed_steps: options.completed_steps,
            repeated_ns: before.removed_ns,
        });
        Ok(before)
    }

    /// Waits until every step is written and durable, and returns what this rank contributes to
    /// the record of the job.
    ///
    /// # Panics
    /// When steps have not begun.
    pub fn finish_steps(&self, options: SummaryOptions) -> RankSummary {
        log_lines::set_step(None);
        let delayed_steps = self.events.delayed_steps();
        let question = |answer| Message::EndSteps { options, delayed_steps, answer };
        self.events.ask(question).expect("the telemetry thread serves")
    }

    /// Interrupts the run before its end, on request or after a failure: nothing is served after
    /// it.
    pub fn interrupt(&self) {
        self.events.send(Message::Interrupt);
    }
}

/// Delivers the events that are still in the queue, also after a failure, and also while a hung
/// save keeps the queue open.
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
    /// Emits that training starts, or resumes.
    pub fn start(&self, text: impl Into<String>) {
        self.emit(Event::Start(text.into()));
    }

    /// Adds a fact to the record. Returns when it is written.
    ///
    /// # Errors
    /// [`Error`] when it cannot be written.
    ///
    /// # Panics
    /// When telemetry has ended.
    pub fn record(&self, fact: Fact) -> Result<(), Error> {
        let question = |answer| Message::Fact(fact, Some(answer));
        self.ask(question).expect("the telemetry thread serves")
    }

    /// Adds a fact to the record without waiting. It is written with the next fact that is waited
    /// for.
    pub fn note_for_record(&self, fact: Fact) {
        self.send(Message::Fact(fact, None));
    }

    /// Begins a step: events and log lines from now on belong to it.
    pub fn begin_step(&self, step: u64) {
        log_lines::set_step(Some(step));
    }

    /// Emits that the first step of the attempt is done.
    pub fn first_step(&self, parts: StartParts) {
        self.emit(Event::FirstStep(parts));
    }

    /// Emits a note that the user may not expect. Only rank 0 shows it.
    pub fn note(&self, text: impl Into<String>) {
        self.emit(Event::Note(text.into()));
    }

    /// Emits a note that a flag has no effect, as it applies to a step that an earlier attempt
    /// completed.
    pub fn note_completed_step(&self, flag: &str, step: u64) {
        self.note(format!("{flag}: no effect, step {step} was completed before"));
    }

    /// Emits a warning, which rank 0 also records. Waits a moment until it is delivered: a warning
    /// may be the last message of a process.
    pub fn warn(&self, anomaly: Anomaly) {
        self.emit(Event::Warning(anomaly));
        self.await_delivery(FLUSH_TIMEOUT);
    }

    /// Emits that a signal asks the run to stop. Waits a moment for delivery too, because the
    /// process may end after it; `false` if telemetry has ended.
    pub fn stop_requested(&self, request: &StopRequest) -> bool {
        self.emit(Event::Stop(request.clone()));
        self.await_delivery(STOP_FLUSH_TIMEOUT)
    }

    /// Waits a moment until earlier events are delivered; `false` if the telemetry thread has
    /// ended.
    fn await_delivery(&self, limit: Duration) -> bool {
        let (answer, answered) = mpsc::sync_channel(1);
        self.send(Message::Flush(answer));
        let delivered = answered.recv_timeout(limit);
        delivered != Err(RecvTimeoutError::Disconnected) // slow storage may keep the thread
    }

    /// Emits a warning without waiting, for the training thread.
    pub fn warn_later(&self, anomaly: Anomaly) {
        self.emit(Event::Warning(anomaly));
    }

    /// Emits that a rank is slow, or no longer is.
    pub fn verdict(&self, verdict: Verdict) {
        self.emit(Event::Verdict(verdict));
    }

    /// Emits that a check has found wrong values. Waits a moment until it is delivered: it may be
    /// the last message of a process.
    pub fn corruption(&self, found: WrongValues) {
        self.emit(Event::Corruption(found));
        self.await_delivery(FLUSH_TIMEOUT);
    }

    /// Emits the readings of a piece of hardware.
    pub fn hardware(&self, readings: Readings) {
        self.emit(Event::Hardware(readings));
    }

    /// Emits that some hardware cannot be read.
    pub fn hardware_missing(&self, missing: Missing) {
        self.emit(Event::HardwareMissing(missing));
    }

    /// Emits that a checkpoint is committed.
    pub fn committed(&self, saved: CheckpointSaved) {
        self.emit(Event::Checkpoint(saved));
    }

    /// Emits that the run ended.
    pub fn end(&self, end: RunEnd) {
        self.emit(Event::End(end));
    }

    fn emit(&self, event: Event) {
        self.send(Message::emitted(event));
    }

    /// Emits a step that has just ended. Allocates nothing and returns at once, unless the queue is
    /// full because the disk has blocked for thousands of steps: then it waits, and counts the
    /// delay.
    ///
    /// # Panics
    /// When the phases do not add up to the wall time.
    pub fn step(&self, sample: StepSample) {
        self.emit_step(StepLine::now(self.rank, sample));
    }

    /// Emits a step that ended at this Unix time in milliseconds.
    ///
    /// # Panics
    /// When the phases do not add up to the wall time.
    pub fn step_at(&self, sample: StepSample, unix_ms: u64) {
        self.emit_step(StepLine { unix_ms, rank: self.rank, sample });
    }

    /// Number of steps that waited for room in the queue.
    pub fn delayed_steps(&self) -> u64 {
        self.delayed_steps.load(Ordering::Relaxed)
    }

    fn emit_step(&self, line: StepLine) {
        let sample = &line.sample;
        assert_eq!(sample.phases.wall_ns(), sample.wall_ns, "phases do not add up to wall time");
        let mut message = Message::emitted(Event::Step(line));
        let mut delayed = false;
        while let Err(TrySendError::Full(full)) = self.queue.try_send(message) {
            message = full;
            delayed = true;
            std::thread::sleep(Duration::from_millis(1));
        }
        self.delayed_steps.fetch_add(u64::from(delayed), Ordering::Relaxed);
    }

    /// Returns a function that waits until every step so far is durable, so that a checkpoint never
    /// has more steps than the files. Another thread may call it.
    ///
    /// # Errors
    /// The reason why steps cannot be written; [`Telemetry::finish_steps`] returns the error too.
    pub fn sync(&self) -> impl FnOnce() -> Result<(), String> + Send + use<> {
        let events = self.clone();
        move || events.ask(Message::Sync).ok_or("the telemetry thread ended")?
    }

    fn send(&self, message: Message) {
        let _ = self.queue.send(message); // without a receiver the run has ended
    }

    /// Asks the telemetry thread for an answer; `None` if that has ended.
    fn ask<T>(&self, question: impl FnOnce(SyncSender<T>) -> Message) -> Option<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.queue.send(question(answer)).ok()?;
        answered.recv().ok()
    }
}

/// All sinks, on the telemetry thread.
struct Sinks {
    record: RunRecord,
    others: Vec<Box<dyn Sink>>,
}

impl Sinks {
    fn serve(mut self, queue: &Receiver<Message>) {
        for message in queue {
            // The thread that asked may have ended.
            match message {
                Message::Event { event, step } => {
                    self.others.iter_mut().for_each(|sink| sink.set_step(step));
                    self.take(&event);
                }
                Message::Fact(fact, answer) => {
                    let recorded = self.take_fact(fact);
                    let _ = answer.map(|answer| answer.send(recorded));
                }
                Message::BeginSteps { log, completed_steps, repeated_ns } => {
                    self.record.begin_steps(log, repeated_ns);
                    self.others.iter_mut().for_each(|sink| sink.begin_steps(completed_steps));
                }
                Message::Sync(answer) => {
                    let _ = answer.send(self.record.sync().map_err(|error| error.to_string()));
                }
                Message::EndSteps { options, delayed_steps, answer } => {
                    self.others.iter_mut().for_each(|sink| sink.end_steps());
                    let _ = answer.send(self.record.end_steps(options, delayed_steps));
                }
                Message::Flush(answer) => {
                    let _ = answer.send(());
                }
                Message::Interrupt => self.others.iter_mut().for_each(|sink| sink.interrupt()),
                Message::End => break,
            }
        }
        self.record.close();
    }

    fn take(&mut self, event: &Event) {
        let found = self.record.take(event);
        self.others.iter_mut().for_each(|sink| sink.take(event));
        self.warn(found);
    }

    fn take_fact(&mut self, fact: Fact) -> Result<(), Error> {
        let found = self.record.take_fact(fact)?;
        self.warn(found);
        Ok(())
    }

    /// Shows warnings of the record.
    fn warn(&mut self, found: Vec<Anomaly>) {
        for anomaly in found {
            let event = Event::Warning(anomaly);
            self.record.take(&event);
            self.others.iter_mut().for_each(|sink| sink.take(&event));
        }
    }
}

#[cfg(test)]
mod tests;
