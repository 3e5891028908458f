//! The collector that spans and metrics are sent to, and the one warning if it does not take them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use checkpoint::remote::check_proxy;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig,
};
use reqwest::blocking::Client;

/// Longest time of a request, and of all tries of one batch: shorter than a run waits at its end,
/// so that a request which begins then still fails within it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Why nothing is sent.
#[derive(Debug, thiserror::Error)]
pub(in crate::telemetry) enum Error {
    #[error("{0}")]
    Thread(#[from] device::threads::Error),
    #[error("{0}")]
    Proxy(#[from] std::io::Error),
    #[error("no HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    #[error("{0}")]
    Exporter(#[from] ExporterBuildError),
}

/// A client of the collector, for the threads of the SDK.
#[derive(Debug, Clone)]
pub(super) struct Collector {
    url: String,
    client: Client,
    has_warned: Arc<AtomicBool>,
}

impl Collector {
    /// Sends nothing yet. Must not be called on a thread of an asynchronous runtime.
    ///
    /// # Errors
    /// When there can be no client.
    pub(super) fn new(url: &str) -> Result<Self, Error> {
        // The build names no default cryptography; whoever comes second finds it installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        check_proxy(url)?;
        let client = Client::builder().timeout(REQUEST_TIMEOUT).build()?;
        let url = url.trim_end_matches('/').to_owned();
        Ok(Self { url, client, has_warned: Arc::default() })
    }

    /// # Errors
    /// When the URL is none.
    pub(super) fn span_exporter(&self) -> Result<SpanExporter, ExporterBuildError> {
        SpanExporter::builder()
            .with_http()
            .with_http_client(self.clone())
            .with_endpoint(format!("{}/v1/traces", self.url))
            .with_timeout(REQUEST_TIMEOUT)
            .build()
    }

    /// # Errors
    /// When the URL is none.
    pub(super) fn metric_exporter(&self) -> Result<MetricExporter, ExporterBuildError> {
        MetricExporter::builder()
            .with_http()
            .with_http_client(self.clone())
            .with_endpoint(format!("{}/v1/metrics", self.url))
            .with_timeout(REQUEST_TIMEOUT)
            .build()
    }

    /// Once for a run: what is sent later may arrive. A password in the URL is not shown.
    pub(super) fn warn(&self, why: &str) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let text = format!("{}: {why}", self.url);
            let authority = self.url.split('/').nth(2).unwrap_or_default();
            let user = authority.rfind('@').map_or("", |end| &authority[..=end]);
            let text = if user.is_empty() { text } else { text.replace(user, "") };
            tracing::warn!(
                "telemetry.otlp: {text}; spans are lost until it takes them (reported once)"
            );
        }
    }

    /// Warns unless the answer is good. A batch that failed may be sent again by the exporter.
    fn check(&self, answer: &Result<Response<Bytes>, HttpError>) {
        match answer {
            Ok(answer) if answer.status().is_success() => {}
            Ok(answer) => self.warn(&format!("answered {}", answer.status())),
            Err(error) => {
                self.warn(&with_causes(error.as_ref()));
            }
        }
    }
}

/// An error and why it happened.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = error.source().map(|cause| format!(": {}", with_causes(cause)));
    format!("{error}{}", causes.unwrap_or_default())
}

impl HttpClient for Collector {
    fn send_bytes<'this, 'future>(
        &'this self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'future>>
    where
        'this: 'future,
        Self: 'future,
    {
        Box::pin(async move {
            let answer = self.client.send_bytes(request).await;
            self.check(&answer);
            answer
        })
    }
}
