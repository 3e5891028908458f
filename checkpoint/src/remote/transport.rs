//! Threads of requests to object stores, and what is ours of each request: its timeout, a check of
//! the proxy that it goes to, and the token of a pod.

use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use device::threads;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{ClientOptions, Result};
use reqwest::StatusCode;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::failure::{NotSent, Stalled, last_cause};
use super::limited::limited;
use super::options::RemoteOptions;
use super::settings::{TokenFile, check_proxy};
use super::silence::{Silence, lock};

/// Two threads, started at the first use: one encrypts while another waits.
const THREADS: usize = 2;

/// The runtime of all object stores of this process.
pub(super) fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(started) = RUNTIME.get() {
        return Ok(started);
    }
    threads::require(THREADS, "object-store")?;
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(THREADS).thread_name("object-store").enable_all();
    let started = builder.build()?;
    Ok(RUNTIME.get_or_init(|| started)) // of two that start at once, one is used
}

/// Connector with timeouts that grow with a request's body. Those of reqwest are the same for all
/// requests, and include the time that the body takes.
///
/// For the credentials of a pod it also adds its token, from a file that is rewritten at any time.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    pub(super) options: RemoteOptions,
    pub(super) token: Option<TokenFile>,
    /// Set if a proxy of the settings replaces that of the environment.
    pub(super) has_proxy: bool,
    pub(super) silence: Arc<Mutex<Silence>>,
}

impl Connector {
    /// Refuses a request that the environment sends to a proxy that cannot be used. Only the URL of
    /// a request decides: its host may be the bucket's own, or one that gives credentials. It would
    /// fail again, so it is of the kind that is not retried.
    fn check_proxy(&self, request: &HttpRequest) -> Result<(), HttpError> {
        if self.has_proxy {
            return Ok(());
        }
        check_proxy(&request.uri().to_string())
            .map_err(|error| HttpError::new(HttpErrorKind::Unknown, NotSent(error)))
    }

    /// Adds the token to a request that needs it. A file that cannot be used now may be whole soon:
    /// the request is tried again.
    fn authorize(&self, mut request: HttpRequest) -> Result<HttpRequest, HttpError> {
        if let Some(file) = self.token.as_ref().filter(|file| *request.uri() == *file.url) {
            let unusable = |error| HttpError::new(HttpErrorKind::Request, error);
            let token = file.read().map_err(unusable)?;
            let header = token.parse().map_err(|e| unusable(std::io::Error::other(e)))?;
            request.headers_mut().insert("authorization", header);
        }
        Ok(request)
    }
}

#[derive(Debug)]
struct Service {
    client: HttpClient,
    connector: Connector,
}

/// Returns the options for object_store: no timeouts of its own.
pub(super) fn client_options(allow_http: bool) -> ClientOptions {
    // The error is that another part of the process has chosen its provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    ClientOptions::new().with_timeout_disabled().with_allow_http(allow_http)
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Service { client, connector: self.clone() }))
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
        let body_bytes = request.body().content_length() as u64;
        let is_for_content = is_for_content(&request);
        let Connector { options, silence, .. } = &self.connector;
        let allowed = options.request_timeout(body_bytes);
        Box::pin(async move {
            let upload = lock(silence).allow(options.transfer(body_bytes));
            let execute = async {
                self.connector.check_proxy(&request)?;
                self.client.execute(self.connector.authorize(request)?).await
            };
            let answered = timeout(allowed, execute)
                .await
                .unwrap_or_else(|_| Err(HttpError::new(HttpErrorKind::Timeout, Stalled(allowed))));
            drop(upload);
            let answer = self.noted(answered)?;
            let is_content = is_for_content && answer.status().is_success();
            Ok(if is_content { answer } else { answer.map(limited) })
        })
    }
}

impl Service {
    /// Notes an answer, or why there is none.
    fn noted(&self, answered: Result<HttpResponse, HttpError>) -> Result<HttpResponse, HttpError> {
        let silence = &self.connector.silence;
        let now = Instant::now();
        match &answered {
            Ok(answer) if is_retried(answer.status()) => {
                lock(silence).failed(now, format!("answered {}", answer.status()));
                return answered;
            }
            Ok(_) => lock(silence).answered(now),
            Err(error) => lock(silence).failed(now, last_cause(error)),
        }
        answered.map(|answer| answer.map(|body| watched(body, silence)))
    }
}

/// Returns whether the answer is the content of an object, whose size the caller limits: not a
/// listing, and not what the store says about a request.
fn is_for_content(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let is_listing = query.split('&').any(|it| it.starts_with("list-type=") || it == "comp=list");
    request.method() == "GET" && !is_listing
}

/// Returns whether object_store sends the request again after an answer of this status.
fn is_retried(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
}

/// A body whose bytes are answers, too.
fn watched(body: HttpResponseBody, silence: &Arc<Mutex<Silence>>) -> HttpResponseBody {
    let arrived = Arc::clone(silence);
    let broken = Arc::clone(silence);
    let body = body.inspect_frame(move |_| lock(&arrived).answered(Instant::now()));
    HttpResponseBody::new(body.inspect_err(move |error| {
        lock(&broken).failed(Instant::now(), last_cause(error));
    }))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::super::Remote;
    use super::*;

    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\netag: \"1\"\r\n\
                        last-modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n";

    /// The head of the response arrives first, and its body after that was noted.
    #[test]
    fn bytes_of_a_body_are_answers_too() {
        let store = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = [
            ("AWS_ENDPOINT_URL", format!("http://{}", store.local_addr().unwrap())),
            ("AWS_SKIP_SIGNATURE", "true".to_owned()),
            ("AWS_PROXY_URL", "http://127.0.0.1:9".to_owned()),
            ("AWS_PROXY_EXCLUDES", "127.0.0.1".to_owned()),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let options = RemoteOptions { settings, ..Default::default() };
        let remote = Remote::open_with("s3://bucket/run", options).unwrap();
        let silence = Arc::clone(&remote.silence);
        let server = thread::spawn(move || {
            let (mut connection, _) = store.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                connection.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            connection.write_all(HEAD.as_bytes()).unwrap();
            let head = loop {
                if let Some(head) = lock(&silence).last_answer {
                    break head;
                }
                thread::yield_now();
            };
            connection.write_all(b"body").unwrap();
            head
        });
        assert_eq!(remote.read("x", 100).unwrap(), "body");
        let head = server.join().unwrap();
        assert!(lock(&remote.silence).last_answer > Some(head));
    }
}
