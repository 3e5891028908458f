//! Client of the collector of spans and metrics, with one warning if it does not take them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig,
};
use reqwest::blocking::Client;
use reqwest::header::{AUTHORIZATION, HeaderValue};

use crate::options::OtlpOptions;

/// Longest time of a request, and of all tries of one batch: shorter than the wait at the end of a
/// run, so that a request which begins then still fails within it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Error that prevents sending.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
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
    /// URL without user and password.
    url: String,
    /// Header with user and password; marked as sensitive.
    authorization: Option<HeaderValue>,
    client: Client,
    has_warned: Arc<AtomicBool>,
}

impl Collector {
    /// Creates the client, without sending. Must not be called on a thread of an asynchronous
    /// runtime.
    ///
    /// # Errors
    /// When the client cannot be created.
    pub(super) fn new(options: &OtlpOptions) -> Result<Self, Error> {
        let url = &options.url;
        // The build names no default cryptography; a second call finds it installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        (options.check_proxy)(url.expose())?;
        let client = Client::builder().timeout(REQUEST_TIMEOUT).build()?;
        // Moves user and password from the URL to a header.
        let request = client.get(url.expose()).build()?;
        let url = request.url().as_str().trim_end_matches('/').to_owned();
        let authorization = request.headers().get(AUTHORIZATION).cloned();
        Ok(Self { url, authorization, client, has_warned: Arc::default() })
    }

    /// Creates the exporter of spans.
    ///
    /// # Errors
    /// When the URL is invalid.
    pub(super) fn span_exporter(&self) -> Result<SpanExporter, ExporterBuildError> {
        SpanExporter::builder()
            .with_http()
            .with_http_client(self.clone())
            .with_endpoint(format!("{}/v1/traces", self.url))
            .with_timeout(REQUEST_TIMEOUT)
            .build()
    }

    /// Creates the exporter of metrics.
    ///
    /// # Errors
    /// When the URL is invalid.
    pub(super) fn metric_exporter(&self) -> Result<MetricExporter, ExporterBuildError> {
        MetricExporter::builder()
            .with_http()
            .with_http_client(self.clone())
            .with_endpoint(format!("{}/v1/metrics", self.url))
            .with_timeout(REQUEST_TIMEOUT)
            .build()
    }

    /// Warns once for a run, as later batches may arrive.
    pub(super) fn warn(&self, why: &str) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let url = &self.url;
            tracing::warn!(
                "telemetry.otlp: {url}: {why}; spans are lost until it accepts them (reported once)"
            );
        }
    }

    /// Warns unless the answer is good. The exporter may send a failed batch again.
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

/// Formats an error with its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = error.source().map(|cause| format!(": {}", with_causes(cause)));
    format!("{error}{}", causes.unwrap_or_default())
}

impl HttpClient for Collector {
    fn send_bytes<'this, 'future>(
        &'this self,
        mut request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'future>>
    where
        'this: 'future,
        Self: 'future,
    {
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        Box::pin(async move {
            let answer = self.client.send_bytes(request).await;
            self.check(&answer);
            answer
        })
    }
}
