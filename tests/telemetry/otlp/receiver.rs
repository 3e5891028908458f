//! Collector for tests: takes OTLP over HTTP, and keeps what it received.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::ResourceMetrics;
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
use prost::Message;

/// Listens until the test ends.
pub(crate) struct Collector {
    address: SocketAddr,
    requests: Receiver<Request>,
}

struct Request {
    /// Lines of the head in lower case.
    head: Vec<String>,
    path: String,
    body: Vec<u8>,
}

/// Data that was sent, in its order.
#[derive(Debug, Default)]
pub(crate) struct Got {
    #[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "runs of several ranks"))]
    pub(crate) metrics: Vec<ResourceMetrics>,
    pub(crate) spans: Vec<ResourceSpans>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        Self::slow(Duration::ZERO)
    }

    /// Starts a collector that answers each request after this delay.
    pub(crate) fn slow(delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let sender = sender.clone();
                std::thread::spawn(move || serve(stream.unwrap(), &sender, delay));
            }
        });
        Self { address, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The heads of all requests until now.
    pub(crate) fn heads(&self) -> Vec<Vec<String>> {
        self.requests.try_iter().map(|request| request.head).collect()
    }

    /// Returns everything that was sent until now.
    pub(crate) fn got(&self) -> Got {
        let mut got = Got::default();
        for Request { path, body, .. } in self.requests.try_iter() {
            match path.as_str() {
                "/v1/metrics" => {
                    let request = ExportMetricsServiceRequest::decode(&*body).unwrap();
                    got.metrics.extend(request.resource_metrics);
                }
                "/v1/traces" => {
                    let request = ExportTraceServiceRequest::decode(&*body).unwrap();
                    got.spans.extend(request.resource_spans);
                }
                other => panic!("nothing is at {other}"),
            }
        }
        got
    }
}

/// Answers the requests of one connection. An empty answer is one without partial success.
fn serve(mut stream: TcpStream, sender: &Sender<Request>, delay: Duration) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read(&mut reader) {
        if sender.send(request).is_err() {
            return;
        }
        std::thread::sleep(delay);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n";
        let _ = write!(stream, "{head}content-length: 0\r\n\r\n");
    }
}

/// The next request; `None` at the end of the connection.
fn read(reader: &mut impl BufRead) -> Option<Request> {
    let mut head: Vec<String> = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_ascii_lowercase()),
        }
    }
    let header = |name: &str| head.iter().find_map(|line| line.strip_prefix(name));
    assert_eq!(header("content-type: "), Some("application/x-protobuf"), "{head:?}");
    let mut body = vec![0; header("content-length: ")?.parse().unwrap()];
    reader.read_exact(&mut body).ok()?;
    let path = head[0].split(' ').nth(1).unwrap().to_owned();
    Some(Request { head, path, body })
}
