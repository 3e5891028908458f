//! Failed run: the span of its attempt reports the failure.

use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

use super::attributes::{integer, text};
use super::receiver::Collector;
use support::Folder;

#[test]
fn the_attempt_of_a_failed_run_is_an_error_with_its_reason() {
    let collector = Collector::start();
    let folder = Folder::new();
    let nan = ["--steps", "6", "--inject", "nan@step=4,rank=0"];
    folder.train(&[&nan[..], &["--otlp", &collector.url()]].concat()).expect(4);
    let got = collector.got();
    let scopes = got.spans.iter().flat_map(|sent| &sent.scope_spans);
    let spans: Vec<_> = scopes.flat_map(|scope| &scope.spans).collect();
    let attempt = spans.iter().find(|span| span.name == "attempt").unwrap();
    let status = attempt.status.as_ref().unwrap();
    assert_eq!(status.code, StatusCode::Error as i32);
    assert_eq!(folder.record()["reason"]["text"], status.message);
    assert_eq!(text(&attempt.attributes, "yardstick.status"), "failed");
    assert_eq!(integer(&attempt.attributes, "yardstick.exit_code"), 4);
    assert_eq!(spans.iter().filter(|span| span.name == "step").count(), 3);
}
