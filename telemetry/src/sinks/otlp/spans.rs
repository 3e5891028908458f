//! Spans of an attempt, from the events of a rank that have a duration.
//!
//! All ranks share the trace of an attempt: its ids follow from those of the run. Its root is the
//! span `attempt` of rank 0; those of the other ranks are below it.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Event as SpanEvent, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks,
    SpanProcessor,
};

use crate::event::{Event, RunEnd};
use crate::options::OtlpOptions;
use record::phase::Phase;
use record::{CheckpointSaved, StartParts, Status as RunStatus, StepLine};

/// Maximum number of warnings that the span of an attempt keeps; beyond it, only their number.
const KEPT_WARNINGS_MAX: usize = 128;

/// Largest gap before a step, by its recorded end and its own time, at which it is taken to follow
/// the previous step without a gap: the end is recorded in whole milliseconds.
const GAP_MAX: Duration = Duration::from_millis(2);

/// Creates the spans of one rank, and puts them into the queue of the SDK.
pub(super) struct Spans {
    /// Queue of the SDK; `None` after the end.
    queue: Option<BatchSpanProcessor>,
    trace: TraceId,
    attempt: AttemptSpan,
    /// End of the last step.
    step_end: Option<SystemTime>,
}

/// Parent of all other spans of a rank. It is sent at the end.
struct AttemptSpan {
    id: SpanId,
    parent: SpanId,
    started: SystemTime,
    attributes: Vec<KeyValue>,
    warnings: SpanEvents,
    status: Status,
}

impl Spans {
    pub(super) fn new(queue: BatchSpanProcessor, rank: usize, options: &OtlpOptions) -> Self {
        let root = span_id(options, 0);
        let attempt = AttemptSpan {
            id: span_id(options, rank),
            parent: if rank == 0 { SpanId::INVALID } else { root },
            started: options.started,
            attributes: Vec::new(),
            warnings: SpanEvents::default(),
            status: Status::Unset,
        };
        Self { queue: Some(queue), trace: trace_id(options), attempt, step_end: None }
    }

    /// Takes an event that was emitted now.
    pub(super) fn take(&mut self, event: &Event, now: SystemTime) {
        match event {
            Event::FirstStep(parts) => self.start(parts),
            Event::Step(line) => self.step(line),
            Event::Checkpoint(saved) => self.checkpoint(saved, now),
            Event::Warning(anomaly) => self.attempt.warn(anomaly.text.clone(), now),
            Event::Verdict(verdict) => self.attempt.warn(verdict.anomaly.text.clone(), now),
            Event::Corruption(found) => self.attempt.warn(found.anomaly.text.clone(), now),
            Event::End(end) => self.attempt.end(end),
            Event::Start(_)
            | Event::Note(_)
            | Event::Stop(_)
            | Event::Hardware(_)
            | Event::HardwareMissing(_) => {}
        }
    }

    /// Sends the span of the attempt. Returns the queue, with the spans that are not sent yet.
    pub(super) fn end(&mut self, now: SystemTime) -> Option<BatchSpanProcessor> {
        let queue = self.queue.take()?;
        let attempt = &self.attempt;
        queue.on_end(SpanData {
            parent_span_id: attempt.parent,
            parent_span_is_remote: attempt.parent != SpanId::INVALID,
            attributes: attempt.attributes.clone(),
            events: attempt.warnings.clone(),
            status: attempt.status.clone(),
            ..self.span("attempt", attempt.id, attempt.started..now)
        });
        Some(queue)
    }

    /// Adds the consecutive parts of the start.
    fn start(&self, parts: &StartParts) {
        let mut since = self.attempt.started;
        for (name, seconds) in parts.of_process() {
            let end = since + Duration::from_secs_f64(seconds);
            self.child(name, since..end, Vec::new());
            since = end;
        }
    }

    /// Adds a step with the time in each phase: all times of a phase together, as a phase occurs
    /// several times in a step.
    fn step(&mut self, line: &StepLine) {
        let sample = &line.sample;
        let times = step_times(self.step_end, line);
        self.step_end = Some(times.end);
        let mut attributes = vec![
            integer("yardstick.step", sample.step),
            KeyValue::new("yardstick.loss", sample.loss),
            integer("yardstick.tokens", sample.tokens),
            integer("yardstick.comm_hidden_ns", sample.comm_hidden_ns),
        ];
        attributes.extend(Phase::ALL.map(|phase| {
            integer(format!("yardstick.phase.{}_ns", phase.name()), sample.phases.get(phase))
        }));
        self.child("step", times, attributes);
    }

    /// Adds a checkpoint, from the trigger to the commit.
    fn checkpoint(&self, saved: &CheckpointSaved, now: SystemTime) {
        let attributes = vec![
            integer("yardstick.step", saved.step),
            integer("yardstick.bytes", saved.bytes),
            integer("yardstick.write_ns", saved.write_ns),
            integer("yardstick.stall_ns", saved.stall_ns),
        ];
        self.child("checkpoint", now - Duration::from_nanos(saved.save_ns)..now, attributes);
    }

    /// Adds a child of the attempt's span.
    fn child(&self, name: &'static str, times: Range<SystemTime>, attributes: Vec<KeyValue>) {
        let Some(queue) = &self.queue else { return };
        let id = RandomIdGenerator::default().new_span_id();
        queue.on_end(SpanData {
            parent_span_id: self.attempt.id,
            attributes,
            ..self.span(name, id, times)
        });
    }

    /// Builds a root span without attributes.
    fn span(&self, name: &'static str, id: SpanId, times: Range<SystemTime>) -> SpanData {
        let sampled = TraceFlags::SAMPLED;
        SpanData {
            span_context: SpanContext::new(self.trace, id, sampled, false, TraceState::NONE),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: times.start,
            end_time: times.end,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("yardstick").build(),
        }
    }
}

impl AttemptSpan {
    fn warn(&mut self, text: String, now: SystemTime) {
        if self.warnings.len() < KEPT_WARNINGS_MAX {
            let attributes = vec![KeyValue::new("yardstick.text", text)];
            self.warnings.events.push(SpanEvent::new("warning", now, attributes, 0));
        } else {
            self.warnings.dropped_count += 1;
        }
    }

    fn end(&mut self, end: &RunEnd) {
        self.attributes.push(KeyValue::new("yardstick.status", end.status.name()));
        let exit_code = end.exit_code.map(|code| integer("yardstick.exit_code", code));
        let committed = end.committed_step.map(|step| integer("yardstick.committed_step", step));
        self.attributes.extend([exit_code, committed].into_iter().flatten());
        self.status = match end.status {
            RunStatus::Complete | RunStatus::Stopped => Status::Ok,
            _ => Status::error(end.reason.as_ref().map_or(&end.text, |why| &why.text).clone()),
        };
    }
}

/// Start and end of a step.
fn step_times(end_before: Option<SystemTime>, line: &StepLine) -> Range<SystemTime> {
    let wall = Duration::from_nanos(line.sample.wall_ns);
    let emitted = SystemTime::UNIX_EPOCH + Duration::from_millis(line.unix_ms);
    let start = emitted - wall;
    let gap = |end: &SystemTime| match start.duration_since(*end) {
        Ok(after) => after,
        Err(before) => before.duration(),
    };
    match end_before.filter(|end| gap(end) <= GAP_MAX) {
        Some(end) => end..end + wall,
        None => start..emitted,
    }
}

fn trace_id(options: &OtlpOptions) -> TraceId {
    let digest = blake3::hash(format!("{} {}", options.run, options.attempt).as_bytes());
    TraceId::from_bytes(*digest.as_bytes().first_chunk().expect("a digest has 32 bytes"))
}

/// Id of the attempt's span on a rank.
fn span_id(options: &OtlpOptions, rank: usize) -> SpanId {
    let digest = blake3::hash(format!("{} {} {rank}", options.run, options.attempt).as_bytes());
    SpanId::from_bytes(*digest.as_bytes().first_chunk().expect("a digest has 32 bytes"))
}

/// Builds an attribute; a number that does not fit becomes the largest one that does.
fn integer(name: impl Into<opentelemetry::Key>, number: impl Into<u64>) -> KeyValue {
    KeyValue::new(name, i64::try_from(number.into()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::fixtures::sample;

    /// A step of 100 ms with a recorded end, Unix time in milliseconds.
    fn ended_ms(unix_ms: u64) -> StepLine {
        StepLine { unix_ms, rank: 0, sample: sample(1, 1) }
    }

    fn ms(unix_ms: f64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs_f64(unix_ms / 1e3)
    }

    #[test]
    fn steps_follow_each_other_unless_there_is_a_gap() {
        assert_eq!(step_times(None, &ended_ms(1100)), ms(1000.0)..ms(1100.0));
        // The end is recorded in whole milliseconds.
        assert_eq!(step_times(Some(ms(1100.25)), &ended_ms(1200)), ms(1100.25)..ms(1200.25));
        assert_eq!(step_times(Some(ms(1099.5)), &ended_ms(1200)), ms(1099.5)..ms(1199.5));
        // A measurement between two steps is in none of them.
        assert_eq!(step_times(Some(ms(1100.0)), &ended_ms(1250)), ms(1150.0)..ms(1250.0));
    }
}
