//! An S3 server in the process of the test, on a free port, over a temporary folder.
//!
//! It stands alone: the tests of several packages include it by its path.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test's helper may panic")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;

pub const BUCKET: &str = "bucket";
const ACCESS_KEY: &str = "test";
const SECRET_KEY: &str = "test-secret";

/// A server with one bucket. Ends when dropped.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    folder: TempDir,
    requests: Arc<Mutex<Vec<String>>>,
    refused: Arc<Mutex<Option<String>>>,
    _runtime: Runtime,
}

#[derive(Clone)]
struct Handler {
    service: S3Service,
    requests: Arc<Mutex<Vec<String>>>,
    /// s3s-fs looks for the object and then writes it: two conditional requests at once would both
    /// succeed.
    conditional: Arc<tokio::sync::Mutex<()>>,
    ignores_conditions_in: Option<PathBuf>,
    refused: Arc<Mutex<Option<String>>>,
}

impl S3Server {
    pub fn start() -> Self {
        Self::start_with(false)
    }

    /// One that creates what `If-None-Match` forbids.
    pub fn start_without_conditions() -> Self {
        Self::start_with(true)
    }

    /// From now on puts of objects with names that end so are answered with 503.
    pub fn refuse_writes_to(&self, suffix: &str) {
        *self.refused.lock().unwrap() = Some(suffix.to_owned());
    }

    fn start_with(ignores_conditions: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(folder.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let requests = Arc::default();
        let refused = Arc::default();
        let handler = Handler {
            service: builder.build(),
            requests: Arc::clone(&requests),
            conditional: Arc::default(),
            ignores_conditions_in: ignores_conditions.then(|| folder.path().to_owned()),
            refused: Arc::clone(&refused),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(handler.clone().serve(stream));
            }
        });
        Self { address, folder, requests, refused, _runtime: runtime }
    }

    pub fn url(&self, key: &str) -> String {
        format!("s3://{BUCKET}/{key}")
    }

    /// What a process has to have in its environment.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    /// The file that holds an object.
    pub fn file(&self, key: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join(key)
    }

    /// Method and path of every request so far, as in `GET /bucket/key`.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// A port that refuses connections, and that no other server gets, until this is dropped.
#[derive(Debug)]
pub struct ClosedPort(TcpSocket);

impl ClosedPort {
    pub fn open() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap(); // and never listens
        Self(socket)
    }

    pub fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }
}

impl Handler {
    async fn serve(self, stream: TcpStream) {
        let service = service_fn(async |request: Request<Incoming>| {
            let line = format!("{} {}", request.method(), request.uri().path());
            let refused = self.refused.lock().unwrap().clone();
            let is_refused = |suffix: String| line.starts_with("PUT") && line.ends_with(&suffix);
            if refused.is_some_and(is_refused) {
                let error = "<Error><Code>SlowDown</Code></Error>".to_owned();
                return Ok(Response::builder().status(503).body(error.into()).unwrap());
            }
            self.requests.lock().unwrap().push(line);
            let is_conditional = request.headers().contains_key("if-none-match");
            if is_conditional && let Some(folder) = &self.ignores_conditions_in {
                // The header is signed, so it stays; now it always holds.
                let object = folder.join(request.uri().path().trim_start_matches('/'));
                drop(std::fs::remove_file(object));
            }
            let _alone = if is_conditional { Some(self.conditional.lock().await) } else { None };
            self.service.call(request.map(s3s::Body::from)).await
        });
        // A client that goes away is no failure of the server.
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }
}
