//! The threads that object stores are talked to on, and the timeout of each request.

use std::io;
use std::sync::OnceLock;

use futures_util::future::BoxFuture;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::{ClientOptions, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::failure::Stalled;
use super::options::RemoteOptions;

/// Two threads, started at the first use: one encrypts while another waits.
const THREADS: usize = 2;

/// The runtime of all object stores of this process.
pub(super) fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(started) = RUNTIME.get() {
        return Ok(started);
    }
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(THREADS).thread_name("object-store").enable_all();
    let started = builder.build()?;
    Ok(RUNTIME.get_or_init(|| started)) // of two that start at once, one is used
}

/// Timeouts that grow with a request's body. Those of reqwest are the same for all requests, and
/// include the time that the body takes.
#[derive(Debug)]
pub(super) struct ScaledTimeouts(pub(super) RemoteOptions);

#[derive(Debug)]
struct Service {
    client: HttpClient,
    options: RemoteOptions,
}

/// What object_store is told: no timeouts of its own.
pub(super) fn client_options(allow_http: bool) -> ClientOptions {
    // The error is that another part of the process has chosen its provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    ClientOptions::new().with_timeout_disabled().with_allow_http(allow_http)
}

impl HttpConnector for ScaledTimeouts {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Service { client, options: self.0.clone() }))
    }
}

impl HttpService for Service {
    fn call<'a, 'async_trait>(
        &'a self,
        request: HttpRequest,
    ) -> BoxFuture<'async_trait, Result<HttpResponse, HttpError>>
    where
        'a: 'async_trait,
    {
        let allowed = self.options.request_timeout(request.body().content_length() as u64);
        Box::pin(async move {
            let answered = timeout(allowed, self.client.execute(request)).await;
            answered
                .unwrap_or_else(|_| Err(HttpError::new(HttpErrorKind::Timeout, Stalled(allowed))))
        })
    }
}
