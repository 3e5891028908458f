//! Spans are one trace over both ranks, with the times of the run.

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

use super::attributes::{integer, text};
use super::observed::{RUN, STEPS};

const PHASES: [&str; 8] =
    ["data", "forward", "backward", "comm_exposed", "optimizer", "checkpoint", "eval", "other"];

/// Tolerance of times: they are sent in nanoseconds, and recorded for steps in milliseconds.
const TOLERANCE_NS: u64 = 5_000_000;

/// A thread may lose its core between the end of a step and the reading of the clock.
const PREEMPTED_NS: u64 = 40_000_000;

/// All spans of a rank.
#[track_caller]
fn of_rank(rank: u64) -> Vec<&'static Span> {
    let sent = RUN.got.spans.iter().filter(|sent| RUN.rank(sent.resource.as_ref()) == rank);
    sent.flat_map(|sent| &sent.scope_spans).flat_map(|scope| &scope.spans).collect()
}

fn named(spans: &[&'static Span], name: &str) -> Vec<&'static Span> {
    spans.iter().filter(|span| span.name == name).copied().collect()
}

#[track_caller]
fn attempt(spans: &[&'static Span]) -> &'static Span {
    let found = named(spans, "attempt");
    let [attempt] = found[..] else { panic!("{found:?}") };
    attempt
}

#[test]
fn all_ranks_are_in_one_trace_with_one_root() {
    let root = attempt(&of_rank(0));
    assert_eq!(root.parent_span_id, [0; 0]);
    assert_eq!(attempt(&of_rank(1)).parent_span_id, root.span_id);
    for rank in [0, 1] {
        let spans = of_rank(rank);
        let attempt = attempt(&spans);
        for span in &spans {
            assert_eq!(span.trace_id, root.trace_id);
            let is_child = span.parent_span_id == attempt.span_id;
            assert!(is_child || span.span_id == attempt.span_id, "{span:?}");
        }
        let mut ids: Vec<_> = spans.iter().map(|span| &span.span_id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), spans.len(), "rank {rank}");
    }
    assert_eq!(text(&root.attributes, "yardstick.status"), "complete");
    assert_eq!(root.status.as_ref().unwrap().code, StatusCode::Ok as i32);
}

#[test]
fn times_are_those_of_the_run() {
    for rank in [0, 1] {
        let spans = of_rank(rank);
        let attempt = attempt(&spans);
        assert!(RUN.began_ns <= attempt.start_time_unix_nano, "{attempt:?}");
        assert!(attempt.end_time_unix_nano <= RUN.ended_ns, "{attempt:?}");
        for span in &spans {
            assert!(span.start_time_unix_nano < span.end_time_unix_nano, "{span:?}");
            let earliest = attempt.start_time_unix_nano - PREEMPTED_NS;
            assert!(earliest <= span.start_time_unix_nano, "{span:?}");
            assert!(span.end_time_unix_nano <= attempt.end_time_unix_nano, "{span:?}");
        }
    }
}

#[test]
fn steps_have_the_times_of_their_phases() {
    for rank in [0, 1] {
        let steps = named(&of_rank(rank), "step");
        let numbers: Vec<_> =
            steps.iter().map(|step| integer(&step.attributes, "yardstick.step")).collect();
        assert_eq!(numbers, (1..=STEPS).collect::<Vec<_>>(), "rank {rank}");
        for (step, line) in steps.iter().zip(RUN.folder.steps(rank as usize)) {
            let phase = |name: &str| {
                let spent_ns = integer(&step.attributes, &format!("yardstick.phase.{name}_ns"));
                assert_eq!(line.0["phases_ns"][name].as_u64(), Some(spent_ns), "{name}");
                spent_ns
            };
            let duration_ns = step.end_time_unix_nano - step.start_time_unix_nano;
            assert_eq!(PHASES.map(phase).iter().sum::<u64>(), duration_ns);
            let told_ns = line.0["unix_ms"].as_u64().unwrap() * 1_000_000;
            assert!(told_ns.abs_diff(step.end_time_unix_nano) < TOLERANCE_NS, "{step:?}");
        }
        // A few may be reported long after they ended, and then overlap the next one.
        let is_late = |pair: &&[&Span]| {
            pair[0].end_time_unix_nano > pair[1].start_time_unix_nano + PREEMPTED_NS
        };
        let late: Vec<_> = steps.windows(2).filter(is_late).collect();
        assert!(late.len() < steps.len() / 3, "{late:?}");
    }
}

#[test]
fn the_start_and_the_saves_are_spans() {
    let spans = of_rank(0);
    let record = RUN.folder.record();
    let mut start_ns = attempt(&spans).start_time_unix_nano;
    for part in ["bootstrap", "wire_up", "restore", "first_step"] {
        let found = named(&spans, part);
        let [span] = found[..] else { panic!("{part}: {found:?}") };
        assert_eq!(span.start_time_unix_nano, start_ns);
        start_ns = span.end_time_unix_nano;
        let seconds = record["attempts"][0]["start"][format!("{part}_seconds")].as_f64().unwrap();
        let duration_ns = span.end_time_unix_nano - span.start_time_unix_nano;
        assert!((duration_ns as f64 - seconds * 1e9).abs() < 1e3, "{span:?}, {seconds} s");
    }
    // In the first step or after it, and before the second one ends.
    let steps = named(&spans, "step");
    assert!(steps[0].start_time_unix_nano < start_ns + PREEMPTED_NS, "{start_ns}, {:?}", steps[0]);
    assert!(start_ns < steps[1].end_time_unix_nano + TOLERANCE_NS, "{start_ns}, {:?}", steps[1]);
    let saves = named(&spans, "checkpoint");
    let saved: Vec<_> =
        saves.iter().map(|save| integer(&save.attributes, "yardstick.step")).collect();
    assert_eq!(saved, [5, 10, 12]);
}
