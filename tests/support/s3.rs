//! S3 server in the process of the test, on a free port, over a temporary folder.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use s3s::Body;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;

use crate::s3_faults::{self, Failure, Faults, Pages};
pub use crate::s3_faults::{Fault, Kind, Operation};

/// The bucket that every server has.
pub const BUCKET: &str = "bucket";
const ACCESS_KEY: &str = "test";
const SECRET_KEY: &str = "test-secret";

/// A server with one bucket. Ends when dropped.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    folder: TempDir,
    requests: Arc<Mutex<Vec<String>>>,
    faults: Arc<Faults>,
    _runtime: Runtime,
}

#[derive(Clone)]
struct Handler {
    service: S3Service,
    requests: Arc<Mutex<Vec<String>>>,
    /// s3s-fs looks for the object and then writes it: two conditional requests at once would both
    /// succeed.
    conditional: Arc<tokio::sync::Mutex<()>>,
    ignores_conditions: bool,
    folder: PathBuf,
    faults: Arc<Faults>,
}

impl S3Server {
    /// Starts a server.
    pub fn start() -> Self {
        Self::start_with(false)
    }

    /// Starts a server that creates objects which `If-None-Match` forbids.
    pub fn start_without_conditions() -> Self {
        Self::start_with(true)
    }

    /// Answers puts of objects whose names have this suffix with 503.
    pub fn refuse_writes_to(&self, suffix: &'static str) {
        let kind = Kind::Answer { status: 503, code: "SlowDown" };
        self.begin(Fault { suffix, ..Fault::always(Operation::AnyPut, kind) });
    }

    /// Starts this fault, and ends any other.
    pub fn begin(&self, fault: Fault) {
        self.faults.begin(Some(fault), &self.file(""));
    }

    /// Ends a fault, and returns the number of requests that it has happened to.
    pub fn end_fault(&self) -> usize {
        let hits = self.faults.hits();
        self.faults.begin(None, &self.file(""));
        hits
    }

    /// Number of uploads in parts that are neither completed nor aborted.
    pub fn open_uploads(&self) -> usize {
        self.upload_files().len()
    }

    fn upload_files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.retain(|file| is_upload(file.file_name().unwrap().to_str().unwrap()));
        files
    }

    fn start_with(ignores_conditions: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(folder.path()).unwrap());
        let requests = Arc::default();
        let faults = Arc::<Faults>::default();
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        builder.set_access(Pages(Arc::clone(&faults)));
        let handler = Handler {
            service: builder.build(),
            requests: Arc::clone(&requests),
            conditional: Arc::default(),
            ignores_conditions,
            folder: folder.path().to_owned(),
            faults: Arc::clone(&faults),
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
        Self { address, folder, requests, faults, _runtime: runtime }
    }

    /// URL of an object.
    pub fn url(&self, key: &str) -> String {
        format!("s3://{BUCKET}/{key}")
    }

    /// Returns the variables that a client process needs in its environment.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    /// Returns the environment as settings of a client, without any proxy of the environment.
    pub fn settings(&self) -> Vec<(String, String)> {
        let no_proxy =
            [("AWS_PROXY_URL", "http://127.0.0.1:9"), ("AWS_PROXY_EXCLUDES", "127.0.0.1")];
        let no_proxy = no_proxy.map(|(name, value)| (name, value.to_owned()));
        let all = self.environment().into_iter().chain(no_proxy);
        all.map(|(name, value)| (name.to_owned(), value)).collect()
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

/// Port that refuses connections, and that no other server gets, until this is dropped.
#[derive(Debug)]
pub struct ClosedPort(TcpSocket);

impl ClosedPort {
    /// Takes a port.
    pub fn open() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap(); // and never listens
        Self(socket)
    }

    /// Number of the port.
    pub fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    /// URL of a server that would be there.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }
}

impl Handler {
    async fn serve(self, stream: TcpStream) {
        let service = service_fn(async |request| self.answer(request).await);
        // A client that disconnects is no failure of the server.
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        let object = self.folder.join(request.uri().path().trim_start_matches('/'));
        let Some(fault) = self.faults.hit(&request, &object) else {
            return self.apply(request).await;
        };
        let request = match Faults::instead(&fault, request).await {
            Ok(answer) => return answer,
            Err(request) => request,
        };
        let answer = self.apply(request).await?;
        self.faults.alter(&fault, answer, &object).await
    }

    async fn apply(&self, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        let path = request.uri().path().to_owned();
        self.requests.lock().unwrap().push(format!("{} {path}", request.method()));
        if self.has_ended(request.uri().query().unwrap_or_default()) {
            return Ok(s3_faults::error(404, "NoSuchUpload", request).await); // s3s-fs denies access
        }
        let is_conditional = request.headers().contains_key("if-none-match");
        if is_conditional && self.ignores_conditions {
            // The header is signed, so it stays; now it always holds.
            drop(std::fs::remove_file(self.folder.join(path.trim_start_matches('/'))));
        }
        let _alone = if is_conditional { Some(self.conditional.lock().await) } else { None };
        let answer = self.service.call(request.map(Body::from)).await;
        answer.map_err(|error| Failure::other(format!("{error:?}")))
    }

    /// Returns whether a query names an upload that does not exist (any more).
    fn has_ended(&self, query: &str) -> bool {
        let id = query.split('&').find_map(|pair| pair.strip_prefix("uploadId="));
        id.is_some_and(|id| !self.folder.join(upload_file(id)).exists())
    }
}

/// The file that s3s-fs has of an upload as long as it is open.
fn upload_file(id: &str) -> String {
    format!(".upload-{id}.json")
}

fn is_upload(file: &str) -> bool {
    file.starts_with(".upload-") && file.ends_with(".json")
}
